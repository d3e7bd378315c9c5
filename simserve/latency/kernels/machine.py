"""One kind of GPU as the kernel families see it: tables, peaks, and whether estimates may fill gaps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import numpy as np

from simserve.errors import ProfileError, nearest
from simserve.latency.tables.grid import EXTRAPOLATED, Float64
from simserve.latency.tables.profiles import ProfileStore, ProfileTable
from simserve.latency.tables.roofline import Cost, Peaks

# How the attention kernels that vLLM picks on a GPU cut their work.
#
# Hopper: FlashAttention 3; data-centre Blackwell: TensorRT-LLM's. Both split long contexts over idle
# multiprocessors and read each KV head once for its whole group of query heads. Elsewhere: FlashAttention 2,
# whose calls with more than one query per sequence do neither.

USUAL_MULTIPROCESSORS, USUAL_L2_BYTES = 132, 50e6
"""An H100's (NVIDIA's architecture white paper, 2022): what is taken where a GPU's file does not say."""


@dataclass(frozen=True)
class KernelTraits:
    """Traits of the attention kernels of one architecture."""

    splits_contexts: bool
    """True if a prefill with few tiles splits its context over idle multiprocessors, and packs query
    heads."""
    tile_rows: int
    """Queries in a tile."""
    multiprocessors: int
    l2_bytes: float


PLAIN = KernelTraits(True, 1, 1, 32e6)
"""A CPU: work in proportion to (query, key) pairs, no tiles of note; chunks and decodes in calls of their
own."""


def kernel_traits(
    sm_arch: int, multiprocessors: int = USUAL_MULTIPROCESSORS, l2_bytes: float = USUAL_L2_BYTES
) -> KernelTraits:
    """Return the traits for an architecture on a chip of that size."""
    if sm_arch == 0:
        return PLAIN
    if sm_arch in (90, 100, 103):
        return KernelTraits(True, 128, multiprocessors, l2_bytes)
    # FlashAttention 2 takes 128 x 64 tiles on A100, and 64 rows on the smaller shared memory of the others;
    # steps in measured prefill times on RTX 4090 and RTX PRO 6000 lie where tiles of 64 rows predict them.
    return KernelTraits(False, 128 if sm_arch == 80 else 64, multiprocessors, l2_bytes)


# Caches of a benchmark are warmer than those of a server.
#
# A kernel timed over and over on the same data finds it in the L2 cache if it fits (L40S holds 96 MB, RTX
# PRO 6000 128 MB: their decode rows imply up to 3.6 times the HBM bandwidth). In a model each layer brings
# its own data. So no kernel is taken to be faster than its launch plus reading its bytes at the bandwidth
# that the same table sustains on data far larger than any L2.

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


T = TypeVar("T")

MoeBackend = Literal["triton", "deep_gemm", "cutlass", "flashinfer_cutlass", "flashinfer_trtllm", "marlin"]
"""Kernels of routed experts by the names of vLLM's `--moe-backend` and SGLang's `--moe-runner-backend`."""


@dataclass
class Machine:
    """Source of kernel times for one GPU."""

    gpu: str
    peaks: Peaks
    profiles: ProfileStore
    allow_analytic: bool
    sm_arch: int = 90
    """CUDA compute capability times ten."""
    gpus_per_node: int = 8
    engine: str = "vllm"
    """Whose kernels are preferred where a table holds those of several engines (its column `backend`)."""
    moe_backend: MoeBackend | None = None
    """The kernel of routed experts; None: what the engine itself was measured to run."""
    estimated: list[str] = field(default_factory=list)
    """What was costed without a table so far, in words."""
    cache: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    """Grids already built, by family and shape."""

    @property
    def traits(self) -> KernelTraits:
        """Return how attention kernels of this architecture cut their work.

        TensorRT-LLM runs its own kernels on all of them: prompts and decodes in calls of their own, and the
        contexts of few decodes split over idle multiprocessors (`multi_block_mode`, on by default).
        """
        traits = kernel_traits(self.sm_arch, self.multiprocessors, self.l2_bytes)
        return replace(traits, splits_contexts=True) if self.engine == "trtllm" else traits

    @property
    def multiprocessors(self) -> int:
        """Return the streaming multiprocessors of the GPU; notes that they are assumed if nothing says."""
        return self._known(self.peaks.multiprocessors, USUAL_MULTIPROCESSORS, "multiprocessors", "132")

    @property
    def l2_bytes(self) -> float:
        """Return the bytes of L2 cache; notes that they are assumed if nothing says."""
        return self._known(self.peaks.l2_bytes, USUAL_L2_BYTES, "L2 cache", "50 MB")

    def _known(self, figure: T | None, usual: T, what: str, words: str) -> T:
        if figure is not None:
            return figure
        note = f"{what} of {self.gpu}: not in its gpu.json, taken as an H100's ({words})"
        if self.sm_arch and note not in self.estimated:  # 0 is a CPU, which has neither
            self.estimated.append(note)
        return usual

    def cached(self, key: tuple[Any, ...], make: Callable[[], T]) -> T:
        """Return what `make` returned for this key the first time."""
        if key not in self.cache:
            self.cache[key] = make()
        return self.cache[key]

    def rows(self, op: str, **equal: Any) -> ProfileTable | None:
        """Return the rows of a table with these values, or None if there is no such table or row."""
        table = self.profiles.table(self.gpu, op)
        if table is None:
            return None
        rows = table.select(**equal)
        return rows if len(rows) else None

    def missing(self, op: str, what: str, column: str = "", value: Any = None) -> None:
        """Note that `what` is costed by roofline; raise `ProfileError` if that is not allowed."""
        table = self.profiles.table(self.gpu, op)
        if table is None:
            reason = f"no table {self.gpu}/{op}"
        elif column:
            known = [str(known) for known in table.values(column)]
            reason = f"table {self.gpu}/{op} has {column} {', '.join(known)}{nearest(str(value), known)}"
        else:
            reason = f"table {self.gpu}/{op} has no such rows"
        if not self.allow_analytic:
            raise ProfileError(f"{what}: {reason}; set analytic: allow to estimate it by roofline")
        note = f"{what}: {reason}; estimated by roofline"
        if note not in self.estimated:
            self.estimated.append(note)
