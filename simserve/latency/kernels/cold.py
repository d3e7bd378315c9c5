"""Caches of a benchmark are warmer than those of a server.

A kernel timed over and over on the same data finds it in the L2 cache if it fits (L40S holds 96 MB, RTX
PRO 6000 128 MB: their decode rows imply up to 3.6 times the HBM bandwidth). In a model each layer brings
its own data. So no kernel is taken to be faster than its launch plus reading its bytes at the bandwidth
that the same table sustains on data far larger than any L2.
"""

from __future__ import annotations

import numpy as np

from simserve.latency.costs import Cost
from simserve.latency.grid import EXTRAPOLATED, Float64

FAR_LARGER_THAN_L2_BYTES = 512e6
USUAL_SHARE = 0.85
"""Share of HBM bandwidth taken where a table has no call that large (what tables of six GPUs sustain)."""


def sustained_bytes_per_us(moved_bytes: Float64, latency_us: Float64, hbm_bytes_per_s: float) -> float:
    """Return the bandwidth that a table's largest calls sustain (90th percentile), at most the HBM's."""
    peak = hbm_bytes_per_s / 1e6
    large = moved_bytes > FAR_LARGER_THAN_L2_BYTES
    if not large.any():
        return USUAL_SHARE * peak
    return min(peak, float(np.quantile(moved_bytes[large] / latency_us[large], 0.9)))


def not_faster_than(cost: Cost, floor_us: Float64 | float) -> Cost:
    """Return the cost raised to `floor_us` where it is below; what is raised counts as extrapolated."""
    low = cost.us < floor_us
    if not np.any(low):
        return cost
    tags = np.where(low, np.maximum(cost.tags, EXTRAPOLATED), cost.tags).astype(np.uint8)
    return Cost(np.maximum(cost.us, floor_us), tags)
