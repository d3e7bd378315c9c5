"""Collectives among ranks of this machine: the `collective` table, over NCCL or gloo.

Times are those of the slowest rank after a barrier. An all-reduce with NCCL is the engine's for large
messages; the custom kernels of engines are not measured here.
"""

from __future__ import annotations

import atexit
from collections.abc import Iterable

from simserve.profiler.case import Case, Kernel, refinement
from simserve.profiler.device import Device, NotEnoughMemory
from simserve.profiler.distributed import Order, Ranks
from simserve.profiler.need import need_torch, version_of
from simserve.profiler.shapes import Shapes
from simserve.profiler.tensors import width_of
from simserve.profiler.timing import Timing

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")


class Collective:
    """The `collective` table."""

    name = "collective"
    key_columns = ("coll", "impl", "dtype", "ranks", "nodes", "bytes")

    def __init__(self) -> None:
        """No ranks run yet."""
        self._ranks: Ranks | None = None

    def cases(self, shapes: Shapes, device: Device) -> Iterable[Case]:
        """Yield every kind over every TP degree above one that this machine can hold."""
        sizes = shapes.sizes.message_bytes
        impl = "nccl" if device.is_cuda else "gloo"
        most = need_torch().cuda.device_count() if device.is_cuda else 8
        dtype = "fp16" if device.is_cuda else "fp32"
        for ranks in shapes.ranks:
            for kind in KINDS if ranks <= most else ():
                if kind == "send_recv" and ranks > 2:
                    continue
                for size, level in zip(sizes, refinement(len(sizes)), strict=True):
                    values = (kind, impl, dtype, ranks, 1, size)
                    yield Case(self.name, tuple(zip(self.key_columns, values, strict=True)), "torch", level)

    def build(self, case: Case, device: Device) -> Kernel:
        """Raise: a collective is timed by all of its ranks, see `time_on_ranks`."""
        raise NotImplementedError("a collective is timed by its ranks")

    def time_on_ranks(self, case: Case, device: Device, most_s: float) -> tuple[Timing, float, str, str]:
        """Return time, error, kernel and version of a case."""
        if 3 * case["bytes"] > device.free_bytes() // (1 if device.is_cuda else case["ranks"]):
            raise NotEnoughMemory(f"{case['bytes']} bytes on each of {case['ranks']} ranks")
        if self._ranks is None or self._ranks.count != case["ranks"]:
            self.close()
            self._ranks = Ranks(case["ranks"], device.kind)
            atexit.register(self.close)
        elements = case["bytes"] // width_of(case["dtype"])
        try:
            timing, error = self._ranks.measure(Order(case["coll"], elements, case["dtype"], most_s))
        except RuntimeError:
            self.close()
            raise
        version = (
            ".".join(map(str, need_torch().cuda.nccl.version())) if device.is_cuda else version_of("torch")
        )
        return timing, error, f"{case['impl']} {case['coll']}", version

    def close(self) -> None:
        """End the ranks, if any run."""
        if self._ranks:
            self._ranks.close()
            self._ranks = None
