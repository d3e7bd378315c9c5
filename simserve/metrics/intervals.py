"""Sums over intervals of time: how much fell into each bin, and which level was held.

Intervals of one replica may have gaps (it was idle) and may overlap (microbatches of a pipeline).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]


def totals(start: Int64, end: Int64, amount: Float64, edges: Float64) -> Float64:
    """Return how much of `amount` falls into each bin [edges[i], edges[i + 1]).

    Each amount is spread evenly over its interval (at least 1 ns); overlapping ones add up.
    """
    end = np.maximum(end, start + 1)
    return _binned(*_levels(start, end, amount / (end - start)), edges)


def held(start: Int64, end: Int64, level: Float64, edges: Float64) -> Float64:
    """Return the integral over each bin of a level that one thing held: 0 in gaps, the mean in overlaps."""
    at, summed = _levels(start, end, level)
    _, covering = _levels(start, end, np.ones(len(start)))
    return _binned(at, summed / np.maximum(np.rint(covering), 1), edges)


def ramps(start: Int64, end: Int64, final: Float64, edges: Float64) -> Float64:
    """Return the integral over each bin of amounts that grow evenly to `final` at their end, then vanish."""
    slope = final / np.maximum(end - start, 1)
    at = np.concatenate([start, end]).astype(np.float64)
    if not at.size:
        return np.zeros(len(edges) - 1)
    order = np.argsort(at, kind="stable")
    at = at[order]
    rate = np.cumsum(np.concatenate([slope, -slope])[order])
    vanished = np.cumsum(np.concatenate([np.zeros_like(final), final])[order])
    step = np.diff(at)
    level = np.concatenate([[0.0], np.cumsum(rate[:-1] * step)]) - vanished
    area = np.concatenate([[0.0], np.cumsum(level[:-1] * step + rate[:-1] * step**2 / 2)])
    piece = np.searchsorted(at, edges, side="right") - 1
    inside = np.maximum(piece, 0)
    since = np.minimum(edges, at[-1]) - at[inside]
    upto = area[inside] + level[inside] * since + rate[inside] * since**2 / 2
    return np.diff(np.where(piece < 0, 0.0, upto))


def _levels(start: Int64, end: Int64, rate: Float64) -> tuple[Float64, Float64]:
    """Return the times at which the sum of rates changes, and its value from then on."""
    at = np.concatenate([start, end]).astype(np.float64)
    order = np.argsort(at, kind="stable")
    return at[order], np.cumsum(np.concatenate([rate, -rate])[order])


def _binned(at: Float64, level: Float64, edges: Float64) -> Float64:
    if at.size == 0:
        return np.zeros(len(edges) - 1)
    area = np.concatenate([[0.0], np.cumsum(level[:-1] * np.diff(at))])
    return np.diff(np.interp(edges, at, area))
