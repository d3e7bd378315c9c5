"""What lies beyond the end of the swept axis.

By default a grid keeps the efficiency of its edge. Where the last points are still far from the
roofline's regime (experts that are just turning compute-bound, message sizes that are just filling the
link) the trend is better: each further unit of roofline time costs what it cost over the last doubling.
Which operation follows the trend was decided by `benchmarks/leave_out.py` (held-out top quarter, H100:
experts 27 -> 20 %, DeepEP 9.5 -> 4 %, NCCL 18 -> 13 %; worse for products and decode attention, which
keep the edge).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]

DOUBLINGS = 6
SLOPE_RANGE = (0.3, 2.0)
"""Bounds of the trend's cost per roofline time, relative to the edge's mean cost."""


def trend_points(
    axes: list[Float64], log_efficiency: Float64, roofline: Callable[..., Any]
) -> tuple[Float64, Float64]:
    """Return points beyond the last axis, and their log efficiencies [..., points], that follow the trend."""
    last = axes[-1]
    edge = float(last[-1])
    before = int(np.clip(np.searchsorted(last, edge / 2, side="right") - 1, 0, len(last) - 2))
    others = np.meshgrid(*axes[:-1], indexing="ij")

    def ideal_us(x: float) -> Float64:
        return np.broadcast_to(roofline(*others, np.float64(x)), log_efficiency.shape[:-1])

    ideal_edge, ideal_before = ideal_us(edge), ideal_us(float(last[before]))
    edge_us = ideal_edge / np.exp2(log_efficiency[..., -1])
    before_us = ideal_before / np.exp2(log_efficiency[..., before])
    mean = edge_us / ideal_edge
    step = ideal_edge - ideal_before
    slope = np.where(step > 0, (edge_us - before_us) / np.where(step > 0, step, 1.0), mean)
    slope = np.clip(slope, SLOPE_RANGE[0] * mean, SLOPE_RANGE[1] * mean)
    beyond = edge * 2.0 ** np.arange(1, DOUBLINGS + 1)
    ideal = np.stack([ideal_us(x) for x in beyond], axis=-1)
    time_us = edge_us[..., None] + slope[..., None] * (ideal - ideal_edge[..., None])
    return beyond.astype(np.float64), np.log2(ideal / time_us).astype(np.float64)
