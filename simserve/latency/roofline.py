"""Least possible times: work / peak rate, whichever of compute and memory takes longer.

Rates are a GPU's vendor figures. The analytic fall-back divides the roofline by named efficiencies
(FlashMLA's README of April 2026 reports about 90 % of HBM bandwidth and 67 % of peak FLOP/s on H800).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

BYTES = {
    "fp32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
    "fp8_block": 1.0,
    "int8": 1.0,
    "int4": 0.5 + 2 / 128,
    "int4_wo": 0.5 + 2 / 128,
    "nvfp4": 0.5 + 1 / 16,
    "mxfp4": 0.5 + 1 / 32,
}
"""Bytes of one element, scales included (int4: one fp16 per 128; nvfp4: one byte per 16; mxfp4: per 32)."""

COMPUTE_EFFICIENCY = 0.67
"""Share of peak FLOP/s that the analytic fall-back assumes (FlashMLA README, 2026-04: 660 of 989 TFLOP/s)."""
MEMORY_EFFICIENCY = 0.9
"""Share of HBM bandwidth that the analytic fall-back assumes (FlashMLA README, 2026-04: 3.0 of 3.35 TB/s)."""
LAUNCH_US = 3.0
"""Shortest kernel that the analytic fall-back assumes: launch and drain (assumption; measured tables bottom
out at 2-10 us)."""


@dataclass(frozen=True)
class Peaks:
    """Vendor figures of one GPU."""

    flops_per_s: dict[str, float]
    """Dense FLOP/s by dtype."""
    hbm_bytes_per_s: float
    nvlink_bytes_per_s: float
    """One direction, one GPU to its peers."""

    def us(self, flops: ArrayLike, moved_bytes: ArrayLike, dtype: str) -> NDArray[np.float64]:
        """Return the roofline time in microseconds."""
        compute_us = np.asarray(flops) * (1e6 / self.flops(dtype))
        memory_us = np.asarray(moved_bytes) * (1e6 / self.hbm_bytes_per_s)
        return np.maximum(compute_us, memory_us)

    def flops(self, dtype: str) -> float:
        """Return FLOP/s of the tensor cores for operands of `dtype` (weight-only formats compute in bf16)."""
        wanted = {"fp16": "bf16", "fp8_block": "fp8"}.get(dtype, dtype)
        return self.flops_per_s.get(wanted, self.flops_per_s["bf16"])

    def analytic_us(self, flops: ArrayLike, moved_bytes: ArrayLike, dtype: str) -> NDArray[np.float64]:
        """Return the fall-back estimate in microseconds: roofline at the named efficiencies, plus a launch."""
        compute_us = np.asarray(flops) * (1e6 / self.flops(dtype) / COMPUTE_EFFICIENCY)
        memory_us = np.asarray(moved_bytes) * (1e6 / self.hbm_bytes_per_s / MEMORY_EFFICIENCY)
        return LAUNCH_US + np.maximum(compute_us, memory_us)


def peaks_of(gpu: Any) -> Peaks:
    """Return the peaks of a `GpuSpec`."""
    return Peaks(dict(gpu.peak_flops), gpu.hbm_bytes_per_s, gpu.nvlink_bytes_per_s)
