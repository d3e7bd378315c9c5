"""Reading the stored columns for drawing."""

from __future__ import annotations

from typing import Any, NamedTuple

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


# Curves over time or latency, and the bands around them: where the mean over seeds lies.

OPACITY = 0.22


class Band(NamedTuple):
    """A curve; over several seeds with the ends of its interval. NaN where a run has no value."""

    place: Float64
    """Milliseconds (of a distribution, whose mean is a share), or seconds (of a series)."""
    mean: Float64
    low: Float64 | None = None
    high: Float64 | None = None


def bands_of(run: StoredRun) -> dict[str, Band]:
    """Return the bands of a run by name; none for a single run."""
    table = run.bands
    if table is None:
        return {}
    columns = [floats(table, name) for name in ("place", "mean", "low", "high")]
    found = {}
    for name in table["curve"].unique().to_pylist():
        mine = equals(table["curve"], name)
        found[name] = Band(*(column[mine] for column in columns))
    return found


def area(x: Float64, low: Float64, high: Float64, colour: str, **more: Any) -> dict[str, Any]:
    """Return the area between two lines over the same x."""
    keep = ~(np.isnan(low) | np.isnan(high))
    return {
        "type": "scatter",
        "mode": "lines",
        "x": short(np.concatenate([x[keep], x[keep][::-1]])),
        "y": short(np.concatenate([low[keep], high[keep][::-1]])),
        "fill": "toself",
        "fillcolor": colour,
        "opacity": OPACITY,
        "line": {"width": 0, "color": colour},
        "hoverinfo": "skip",
        "showlegend": False,
        **more,
    }
