"""From what the user asked for to a plan on an open device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from simserve.errors import ProfileError, nearest
from simserve.latency.tables.profiles import ProfileStore
from simserve.model.load import load_model
from simserve.profiler.case import Case, Table
from simserve.profiler.device import LIBRARIES, Device, need_torch, open_device, unusable, version_of
from simserve.profiler.ops import OPS, ops_named
from simserve.profiler.ops.attention_kernels import flex_missing
from simserve.profiler.ranks import launch
from simserve.profiler.run import Outcome, Place, Progress, describe, run_plan
from simserve.profiler.shapes import CPU_SIZES, CUDA_SIZES, Shapes, shapes_of
from simserve.profiler.tensors import width_of

# What to measure, most valuable first.
#
# Level by level: the corners of every grid, then what halves its cells, so that a plan cut short leaves
# usable
# grids. Within a level, what no shipped table of this GPU has comes first (cached prefixes, mixed and unequal
# batches, experts by counts, norms), then what dominates a step.


def plan(ops: Sequence[Table], shapes: Shapes, device: Device, gpu: str) -> list[Case]:
    """Return all cases of `ops` in the order in which they are to be measured, each once."""
    shipped = set(ProfileStore().ops(gpu))
    cases: dict[str, Case] = {}
    place: dict[str, tuple[int, bool, int]] = {}
    for order, op in enumerate(ops):
        for case in op.cases(shapes, device):
            if case.id not in cases:
                cases[case.id] = case
                place[case.id] = (case.level, op.name in shipped and not _unseen(case), order)
    return sorted(cases.values(), key=lambda case: place[case.id])


def _unseen(case: Case) -> bool:
    """True for rows that no shipped table has: prompts on a cached prefix."""
    return dict(case.key).get("prefix_len", 0) > 0


@dataclass(frozen=True)
class Types:
    """Types to measure; empty: the device's own, and for KV that of activations."""

    activations: str = ""
    weights: tuple[str, ...] = ()
    kv: tuple[str, ...] = ()


@dataclass(frozen=True)
class Job:
    """A plan, ready to run."""

    gpu: str
    device: Device
    cases: list[Case]
    dtypes: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """Backends that cannot be measured here, and why, in words."""

    @staticmethod
    def make(
        gpu: str,
        device: str,
        models: Sequence[str],
        ops: Sequence[str],
        tps: Sequence[int],
        types: Types = Types(),
        *,
        threads: int = 0,
        backends: Sequence[str] = (),
    ) -> Job:
        """Open the device and plan; raises `ProfileError` or `ScenarioError` for what the user must mend.

        Empty sequences mean: all operations, every backend that is there.
        """
        if not gpu or not gpu.replace("_", "").replace("-", "").replace(".", "").isalnum():
            raise ProfileError(f"--gpu-name {gpu!r}: allowed: letters, digits, '_', '-' and '.'")
        wanted = ops_named(list(ops))
        specs = [load_model(name) for name in models]
        opened = open_device(device)
        if threads:
            need_torch().set_num_threads(threads)
        dtype, kv_dtypes = types.activations or opened.default_dtype(), types.kv
        weights = tuple(types.weights) or (dtype, *opened.more_weight_dtypes())
        for one in (dtype, *weights):
            opened.check_dtype(one)
        for one in kv_dtypes:
            if one not in (dtype, "fp8"):
                raise ProfileError(f"--kv-dtype {one!r}: allowed: {dtype} and fp8")
        check_backends(backends)
        if dtype.startswith("fp8"):
            raise ProfileError(
                f"--dtype {dtype}: activations are bf16, fp16 or fp32; say --weights-dtype {dtype}"
            )
        sizes = CUDA_SIZES if opened.is_cuda else CPU_SIZES
        shapes = shapes_of(specs, tps, dtype, weights, sizes, width_of(dtype), kv_dtypes)
        place = launch()
        if place and place.world not in (1, *shapes.ranks):
            shapes.ranks.append(place.world)
        cases = plan(wanted, shapes, opened, gpu)
        if not cases:
            raise ProfileError(
                f"nothing to measure: no --ops {','.join(ops) or 'at all'} in {', '.join(models)} with --tp "
                f"{','.join(map(str, tps))}"
            )
        notes = () if backends else tuple(left_out(opened))
        if backends:
            cases = [case for case in cases if case.backend in backends]
            if not cases:
                raise ProfileError(
                    f"--backends {','.join(backends)}: {'; '.join(_why_not(backends, opened))}"
                )
        return Job(gpu, opened, cases, (dtype, *weights), notes)

    def run(
        self, out: Path, budget_s: float, resume: bool = False, progress: Progress | None = None
    ) -> Outcome:
        """Measure within the budget; see `run_plan`."""
        place = Place(self.gpu, self.device, self.dtypes, out)
        return run_plan(self.cases, OPS, place, budget_s, resume, progress)

    @staticmethod
    def describe(case: Case) -> str:
        """Return a case in words."""
        return f"level {case.level}: {describe(case)} ({case.backend})"


def check_backends(names: Sequence[str]) -> None:
    """Raise `ProfileError` for a backend that the profiler does not know."""
    for name in names:
        if name not in LIBRARIES:
            hint = nearest(name, LIBRARIES)
            raise ProfileError(f"--backends {name!r}{hint}; known: {', '.join(LIBRARIES)}")


def _why_not(names: Sequence[str], device: Device) -> Iterator[str]:
    """Yield why each backend has nothing to measure."""
    for name in names:
        if not version_of(name):
            yield f"{name} is not installed (package {LIBRARIES[name]})"
        elif why := unusable(name):
            yield f"{name} cannot be imported ({why})"
        else:
            yield f"{name} has no kernel for these operations and dtypes on {device.title}"


def left_out(device: Device) -> Iterator[str]:
    """Yield a line for each backend that is there but cannot be used on this device."""
    if why := flex_missing(device):
        yield f"flex_attention is left out: {why}"
    for name in LIBRARIES if device.is_cuda else ():
        if why := unusable(name):
            yield f"{name} is left out: {why}"
