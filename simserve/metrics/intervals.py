"""Quantities that hold over intervals of time: integrals, means over bins and windows.

Intervals may have gaps (nothing happens) and may overlap (several replicas): rates simply add up.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]


def integrals(
    start: NDArray[np.int64], end: NDArray[np.int64], rate: NDArray[np.float64], edges: Float64
) -> Float64:
    """Return the integral of the summed rates over each bin [edges[i], edges[i + 1]).

    `rate[j]` holds over [start[j], end[j]). Work is O(m log m + bins).
    """
    if start.size == 0:
        return np.zeros(len(edges) - 1)
    at = np.concatenate([start, end]).astype(np.float64)
    change = np.concatenate([rate, -rate])
    order = np.argsort(at, kind="stable")
    at = at[order]
    level = np.cumsum(change[order])
    area = np.concatenate([[0.0], np.cumsum(level[:-1] * np.diff(at))])
    return np.diff(np.interp(edges, at, area, left=0.0, right=area[-1]))


def totals(
    start: NDArray[np.int64], end: NDArray[np.int64], amount: NDArray[np.float64], edges: Float64
) -> Float64:
    """Return how much of `amount` falls into each bin, spread evenly over its interval (at least 1 ns)."""
    end = np.maximum(end, start + 1)
    return integrals(start, end, amount / (end - start), edges)
