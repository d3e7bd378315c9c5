"""Reading the stored columns for drawing."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simserve import arrow
from simserve.metrics.store import StoredRun

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]


def equals(words: pa.ChunkedArray, word: str) -> NDArray[np.bool_]:
    """Return where a column of words holds `word` (null: nowhere)."""
    return arrow.equals(words, word)


def completed(run: StoredRun) -> pa.Table:
    """Return the requests of a run that were completed."""
    return arrow.rows(run.requests, equals(run.requests["status"], "completed"))


def stamps(table: pa.Table, name: str) -> Int64:
    """Return a column of time stamps; -1 where it never happened."""
    return arrow.numbers(table[name], -1)


def floats(table: pa.Table, name: str) -> Float64:
    """Return a column of numbers; NaN where there is none."""
    return arrow.floats(table[name])


def short(values: np.ndarray) -> list[float | None]:
    """Return the values with 5 significant digits: enough to draw, and small in the page; NaN is a gap."""
    return [float(f"{value:.5g}") if value == value else None for value in values.tolist()]
