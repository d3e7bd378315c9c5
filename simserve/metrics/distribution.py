"""Mean, percentiles and maximum of a set of values, or of a weighted histogram.

Percentiles interpolate linearly between order statistics (numpy's default), as vLLM's bench and AIPerf do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simserve.core import TokenGaps
from simserve.units import NS_PER_MS

PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True)
class Distribution:
    """Statistics of one quantity; all None (and count 0) where there is no data."""

    count: int = 0
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None


def of_values(values: NDArray[np.float64]) -> Distribution:
    """Return the statistics of the values that are present (not NaN)."""
    present = values[~np.isnan(values)]
    if present.size == 0:
        return Distribution()
    p50, p90, p95, p99 = np.percentile(present, PERCENTILES)
    mean, largest = float(present.mean()), float(present.max())
    return Distribution(present.size, mean, float(p50), float(p90), float(p95), float(p99), largest)


def of_gaps_ms(gaps: TokenGaps) -> Distribution:
    """Return the statistics, in ms, of pooled inter-token gaps.

    The mean is exact. Every gap counts as the middle of its bin, so percentiles and the maximum are within
    half a bin's width (0.25 %) of the true ones.
    """
    count = int(gaps.count.sum())
    if count == 0:
        return Distribution()
    p50, p90, p95, p99 = (_percentile(gaps, count, p) / NS_PER_MS for p in PERCENTILES)
    largest = float(gaps.gap_ns[np.flatnonzero(gaps.count)[-1]]) / NS_PER_MS
    return Distribution(count, gaps.sum_ns / count / NS_PER_MS, p50, p90, p95, p99, largest)


def share_within(gaps: TokenGaps, limit_ms: float) -> float | None:
    """Return the share of gaps not longer than `limit_ms`; None if there are none."""
    count = int(gaps.count.sum())
    if count == 0:
        return None
    return float(gaps.count[gaps.gap_ns <= limit_ms * NS_PER_MS].sum()) / count


def _percentile(gaps: TokenGaps, count: int, percent: float) -> float:
    """Return what `np.percentile(np.repeat(gap_ns, count), percent)` would, without repeating."""
    position = (count - 1) * percent / 100
    below = int(position)
    ends = np.cumsum(gaps.count)
    low, high = np.searchsorted(ends, [below, min(below + 1, count - 1)], side="right")
    low_ns, high_ns = float(gaps.gap_ns[low]), float(gaps.gap_ns[high])
    return low_ns + (high_ns - low_ns) * (position - below)
