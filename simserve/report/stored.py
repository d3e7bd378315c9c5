"""Reading the stored columns for drawing."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]


def equals(words: pa.ChunkedArray, word: str) -> NDArray[np.bool_]:
    """Return where a column of words holds `word` (null: nowhere)."""
    return pc.call_function("equal", [words, pa.scalar(word)]).fill_null(False).to_numpy()


def stamps(table: pa.Table, name: str) -> Int64:
    """Return a column of time stamps; -1 where it never happened."""
    return table[name].fill_null(-1).to_numpy()


def floats(table: pa.Table, name: str) -> Float64:
    """Return a column of numbers; NaN where there is none."""
    return table[name].to_numpy(zero_copy_only=False).astype(np.float64)


def short(values: np.ndarray) -> list[float | None]:
    """Return the values with 5 significant digits: enough to draw, and small in the page; NaN is a gap."""
    return [float(f"{value:.5g}") if value == value else None for value in values.tolist()]
