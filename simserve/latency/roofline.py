"""Least possible times: work / peak rate, whichever of compute and memory takes longer.

Rates are a GPU's vendor figures. The analytic fall-back divides the roofline by named efficiencies
(FlashMLA's README of April 2026 reports about 90 % of HBM bandwidth and 67 % of peak FLOP/s on H800).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from simserve.core.efficiency import COMPUTE_EFFICIENCY, MEMORY_EFFICIENCY
from simserve.hardware import GpuSpec
from simserve.model.dtypes import quantised_bytes

BYTES = {
    **quantised_bytes(),
    "int4_wo": quantised_bytes()["int4"],
    "fp8_ds_mla": 656 / 576,
}
"""Bytes of one element, scales included, as the weights count them.

`fp8_ds_mla` is FlashMLA's layout of a latent of 576: 656 bytes (README, 2026-04).
"""

LAUNCH_US = 3.0
"""Shortest kernel that the analytic fall-back assumes: launch and drain (assumption; measured tables bottom
out at 2-10 us)."""


@dataclass(frozen=True)
class Peaks:
    """Vendor figures of one GPU."""

    flops_per_s: dict[str, float]
    """Dense FLOP/s by dtype."""
    hbm_bytes_per_s: float
    link_bytes_per_s: float
    """One direction, one GPU to its peers in the node."""
    has_nvlink: bool = True
    multiprocessors: int | None = None
    l2_bytes: float | None = None

    def us(self, flops: Any, moved_bytes: Any, dtype: str) -> Any:
        """Return the roofline time in microseconds (a float from floats, an array from arrays)."""
        compute_us = flops * (1e6 / self.flops(dtype))
        memory_us = moved_bytes * (1e6 / self.hbm_bytes_per_s)
        if isinstance(compute_us, float) and isinstance(memory_us, float):
            return max(compute_us, memory_us)
        return np.maximum(compute_us, memory_us)

    def flops(self, dtype: str) -> float:
        """Return FLOP/s of the tensor cores for operands of `dtype` (weight-only formats compute in bf16)."""
        wanted = {"fp16": "bf16", "fp8_block": "fp8"}.get(dtype, dtype)
        return self.flops_per_s.get(wanted, self.flops_per_s["bf16"])

    def analytic_us(self, flops: Any, moved_bytes: Any, dtype: str) -> Any:
        """Return the fall-back estimate in us: the roofline at the named efficiencies, plus a launch."""
        return LAUNCH_US + self.us(flops / COMPUTE_EFFICIENCY, moved_bytes / MEMORY_EFFICIENCY, dtype)


def peaks_of(gpu: GpuSpec) -> Peaks:
    """Return the peaks of a GPU; its peers are reached over NVLink, or over PCIe where it has none."""
    flops = {dtype: figure.value for dtype, figure in gpu.peak.items()}
    return Peaks(
        flops,
        gpu.hbm_bytes_per_s,
        gpu.nvlink_bytes_per_s or gpu.pcie_bytes_per_s,
        gpu.nvlink is not None,
        int(gpu.multiprocessors.value) if gpu.multiprocessors else None,
        gpu.l2.value if gpu.l2 else None,
    )
