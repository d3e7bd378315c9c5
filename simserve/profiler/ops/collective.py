"""What several ranks do together: collectives over NCCL or gloo, and the exchange of experts' tokens.

Times are those of the slowest rank after a barrier. An all-reduce with NCCL is the engine's for large
messages; the custom kernels of engines are not measured here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

from simserve.profiler.case import Case, refinement
from simserve.profiler.collectives import Exchange
from simserve.profiler.device import Device, NotEnoughMemory, library, need_torch, version_of
from simserve.profiler.rank_work import Order
from simserve.profiler.ranks import RankPool, launch
from simserve.profiler.shapes import Shapes
from simserve.profiler.tensors import TOLERANCE, width_of
from simserve.profiler.timing import Timing

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
DEEPEP_SMS = 20
"""Multiprocessors of DeepEP's normal kernels: its default, which engines keep."""
LOW_LATENCY_TOKENS = 256
"""Most tokens per rank for its low-latency kernels."""
OWN_RANKS_ON_A_CPU = 8


class OverRanks(ABC):
    """A table whose times are taken by several ranks, which build the call themselves."""

    name = ""
    key_columns: tuple[str, ...] = ()
    tolerance = 0.0

    def __init__(self, ranks: RankPool) -> None:
        """Take ranks from a pool that others may share."""
        self.ranks = ranks

    @abstractmethod
    def cases(self, shapes: Shapes, device: Device) -> Iterable[Case]:
        """Yield what is to be measured for these shapes, by every backend that is installed."""

    def time_on_ranks(self, case: Case, device: Device, most_s: float) -> tuple[Timing, float, str, str]:
        """Return time, error, kernel and version of a case; raises `CannotTime` if its ranks cannot start."""
        needed = self.bytes_per_rank(case)
        if needed > device.free_bytes() // (1 if device.is_cuda else case["ranks"]):
            raise NotEnoughMemory(f"{needed} bytes on each of {case['ranks']} ranks")
        try:
            timing, error = self.ranks.get(case["ranks"], device.kind).measure(self.order(case, most_s))
        except RuntimeError:
            self.ranks.close()
            raise
        return timing, error, self.kernel(case), self.version(case, device)

    def version(self, case: Case, device: Device) -> str:
        """Return the version of what carried the data."""
        if case.backend == "torch" and device.is_cuda:
            return ".".join(map(str, need_torch().cuda.nccl.version()))
        return version_of(case.backend)

    @abstractmethod
    def order(self, case: Case, most_s: float) -> Order:
        """Return what every rank is to do."""

    @abstractmethod
    def bytes_per_rank(self, case: Case) -> int:
        """Return the memory that a rank needs."""

    @abstractmethod
    def kernel(self, case: Case) -> str:
        """Return the kernel's name."""


def _counts(shapes: Shapes, device: Device) -> Iterator[tuple[int, int]]:
    """Yield (ranks, nodes) that can be had here."""
    place = launch()
    most = place.world if place else OWN_RANKS_ON_A_CPU
    if device.is_cuda and not place:
        most = need_torch().cuda.device_count()
    for ranks in shapes.ranks:
        if ranks <= most:
            yield ranks, -(-ranks // place.per_node) if place else 1


class Collective(OverRanks):
    """The `collective` table."""

    name = "collective"
    key_columns = ("coll", "impl", "dtype", "ranks", "nodes", "bytes")

    def cases(self, shapes: Shapes, device: Device) -> Iterable[Case]:
        """Yield every kind over every TP degree above one that this machine can hold."""
        sizes = shapes.sizes.message_bytes
        impl, dtype = ("nccl", "fp16") if device.is_cuda else ("gloo", "fp32")
        for ranks, nodes in _counts(shapes, device):
            for kind in KINDS if ranks == 2 else KINDS[:-1]:
                for size, level in zip(sizes, refinement(len(sizes)), strict=True):
                    values = (kind, impl, dtype, ranks, nodes, size)
                    yield Case(self.name, tuple(zip(self.key_columns, values, strict=True)), "torch", level)

    def order(self, case: Case, most_s: float) -> Order:
        """Return elements and dtype."""
        elements = case["bytes"] // width_of(case["dtype"])
        return Order(case["coll"], (elements, case["dtype"]), most_s)

    def bytes_per_rank(self, case: Case) -> int:
        """Return input, output and the check's."""
        return 3 * case["bytes"]

    def kernel(self, case: Case) -> str:
        """Return library and collective."""
        return f"{case['impl']} {case['coll']}"


class ExpertExchange(OverRanks):
    """The `ep_a2a` table: `tokens_per_rank` tokens of each rank to their experts' ranks, or back."""

    name = "ep_a2a"
    key_columns = (
        "phase", "mode", "dtype", "hidden", "topk", "experts", "ranks", "nodes", "sms", "tokens_per_rank",
    )  # fmt: skip
    tolerance = TOLERANCE["fp8"]

    def cases(self, shapes: Shapes, device: Device) -> Iterable[Case]:
        """Yield both ways over every number of ranks that divides the experts, by every backend."""
        tokens = shapes.sizes.tokens
        routed = dict.fromkeys((shape.hidden, shape.topk, shape.experts) for shape in shapes.experts)
        for ranks, nodes in _counts(shapes, device):
            for hidden, topk, experts in routed if ranks > 1 else ():
                if experts % ranks:
                    continue
                for backend, mode, most, sms in _modes(device):
                    for phase in ("dispatch", "combine"):
                        dtype = "fp8" if backend == "deep_ep" and phase == "dispatch" else shapes.dtype
                        for count, level in zip(tokens, refinement(len(tokens)), strict=True):
                            if count <= most:
                                values = (phase, mode, dtype, hidden, topk, experts, ranks, nodes, sms, count)
                                key = tuple(zip(self.key_columns, values, strict=True))
                                yield Case(self.name, key, backend, level)

    def order(self, case: Case, most_s: float) -> Order:
        """Return the exchange."""
        names: dict[str, Any] = {"tokens": "tokens_per_rank"}
        return Order("exchange", tuple(case[names.get(name, name)] for name in Exchange._fields), most_s)

    def bytes_per_rank(self, case: Case) -> int:
        """Return what is sent and what arrives, with the check's copy in float64."""
        return 24 * case["tokens_per_rank"] * case["hidden"] * min(case["topk"], case["ranks"])

    def kernel(self, case: Case) -> str:
        """Return mode and phase."""
        return f"{case['mode']} {case['phase']}"


def _modes(device: Device) -> Iterator[tuple[str, str, int, int]]:
    """Yield (backend, mode, most tokens per rank, multiprocessors)."""
    yield "torch", "all_to_all", 1 << 30, 0
    if device.compute_capability >= 80 and library("deep_ep"):
        yield "deep_ep", "low_latency", LOW_LATENCY_TOKENS, 0
        yield "deep_ep", "normal", 1 << 30, DEEPEP_SMS
