"""Curves over time or latency, and the bands around them: where the mean over seeds lies."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from simserve.metrics.store import StoredRun
from simserve.report.stored import Float64, equals, floats, short

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
