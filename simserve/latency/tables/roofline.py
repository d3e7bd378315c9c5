"""Least possible times: work / peak rate, whichever of compute and memory takes longer.

Rates are a GPU's vendor figures. The analytic fall-back divides the roofline by named efficiencies
(FlashMLA's README of April 2026 reports about 90 % of HBM bandwidth and 67 % of peak FLOP/s on H800).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from simserve.core.operation import Operation
from simserve.core.totals import COMPUTE_EFFICIENCY, MEMORY_EFFICIENCY
from simserve.hardware import GpuSpec
from simserve.latency.tables.grid import ANALYTIC, Float64, Tags
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


# Costs as arrays: microseconds, and where each came from.


class Cost(NamedTuple):
    """Times of one kernel over an array of sizes."""

    us: Float64
    tags: Tags

    def where(self, condition: NDArray[np.bool_], other: Cost) -> Cost:
        """Return this cost where `condition` (bool[n]) holds, else the other."""
        return Cost(np.where(condition, self.us, other.us), np.where(condition, self.tags, other.tags))


class Weights(NamedTuple):
    """The weights that a kernel multiplies with, on one GPU."""

    params: float
    dtype: str


class LinearOp(NamedTuple):
    """A kernel whose time depends on a count only (tokens of the step, or sequences)."""

    name: str
    cost: Callable[[Float64], Cost]
    """From the counts (float64[n], each at least 1) to their cost."""
    times: int = 1
    """How often a layer, or the step, runs it."""
    weights: Weights | None = None
    """What it multiplies with each time; None: it only moves data."""
    group: Operation = Operation.OTHER
    """Where its time is counted in the summary of a run."""
    core_to_dispatch: bool = False
    """True if it runs between the core of attention and the dispatch to the experts."""


def analytic(us: Float64) -> Cost:
    """Return a cost that comes from no measurement."""
    return Cost(us, np.full(np.shape(us), ANALYTIC, np.uint8))


def by_provenance(costs: list[tuple[Cost, int]], size: int) -> Float64:
    """Return microseconds by provenance, float64[4, size], of costs each run a number of times."""
    total = np.zeros((4, size))
    for cost, times in costs:
        for tag in np.unique(cost.tags):
            total[tag] += np.where(cost.tags == tag, cost.us * times, 0.0)
    return total


# Kernels whose time depends on one count, summed into an array: one look-up per step.


class CountedTimes:
    """Time by a count of tokens or sequences. Count 0 takes no time."""

    def __init__(self, ops: list[LinearOp], first: int) -> None:
        """Price counts up to `first`; larger ones when asked for."""
        self._ops = ops
        self._ns: array[int] = array("q", [0])
        self._parts_us: Float64 = np.zeros((4, 1))
        self._grow(first)

    def at(self, count: int) -> int:
        """Return nanoseconds."""
        try:
            return self._ns[count]
        except IndexError:
            self._grow(count)
            return self._ns[count]

    def parts_ns(self, count: int) -> Float64:
        """Return nanoseconds by provenance, float64[4]."""
        self.at(count)
        return self._parts_us[:, count] * 1000

    def _grow(self, count: int) -> None:
        have = len(self._ns)
        size = have
        while size <= count:
            size *= 2
        counts = np.arange(have, size, dtype=np.float64)
        more = by_provenance([(op.cost(counts), op.times) for op in self._ops], len(counts))
        self._parts_us = np.concatenate([self._parts_us, more], axis=1)
        self._ns.frombytes(np.rint(more.sum(0) * 1000).astype(np.int64).tobytes())
