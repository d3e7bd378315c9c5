"""One kind of GPU as the kernel families see it: tables, peaks, and whether estimates may fill gaps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from simserve.errors import ProfileError, nearest
from simserve.latency.kernels.traits import (
    USUAL_L2_BYTES,
    USUAL_MULTIPROCESSORS,
    KernelTraits,
    kernel_traits,
)
from simserve.latency.profile_file import ProfileTable
from simserve.latency.profiles import ProfileStore
from simserve.latency.roofline import Peaks

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
