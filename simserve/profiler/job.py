"""From what the user asked for to a plan on an open device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from simserve.errors import ProfileError
from simserve.model.load import load_model
from simserve.profiler.case import Case
from simserve.profiler.device import Device, open_device
from simserve.profiler.need import need_torch
from simserve.profiler.ops import OPS, ops_named
from simserve.profiler.plan import plan
from simserve.profiler.run import Outcome, Progress, describe, run_plan
from simserve.profiler.shapes import CPU_SIZES, CUDA_SIZES, shapes_of
from simserve.profiler.tensors import width_of


@dataclass(frozen=True)
class Job:
    """A plan, ready to run."""

    gpu: str
    device: Device
    cases: list[Case]
    dtypes: tuple[str, ...]

    @staticmethod
    def make(
        gpu: str,
        models: Sequence[str],
        ops: Sequence[str],
        tps: Sequence[int],
        dtype: str,
        weight_dtypes: Sequence[str],
        device: str,
        threads: int = 0,
    ) -> Job:
        """Open the device and plan; raises `ProfileError` or `ScenarioError` for what the user must mend."""
        if not gpu or not gpu.replace("_", "").replace("-", "").replace(".", "").isalnum():
            raise ProfileError(f"--gpu-name {gpu!r}: allowed are letters, digits, '_', '-' and '.'")
        wanted = ops_named(list(ops))
        specs = [load_model(name) for name in models]
        opened = open_device(device)
        if threads:
            need_torch().set_num_threads(threads)
        dtype = dtype or opened.default_dtype()
        weights = tuple(weight_dtypes) or (dtype,)
        for one in (dtype, *weights):
            opened.check_dtype(one)
        if dtype.startswith("fp8"):
            raise ProfileError(
                f"--dtype {dtype}: activations are bf16, fp16 or fp32; say --weights-dtype {dtype}"
            )
        sizes = CUDA_SIZES if opened.is_cuda else CPU_SIZES
        shapes = shapes_of(specs, tps, dtype, weights, sizes, width_of(dtype))
        return Job(gpu, opened, plan(wanted, shapes, opened, gpu), (dtype, *weights))

    def run(
        self, out: Path, budget_s: float, resume: bool = False, progress: Progress | None = None
    ) -> Outcome:
        """Measure within the budget; see `run_plan`."""
        return run_plan(self.cases, OPS, self.device, self.gpu, out, budget_s, resume, self.dtypes, progress)

    @staticmethod
    def describe(case: Case) -> str:
        """Return a case in words."""
        return f"level {case.level}: {describe(case)} ({case.backend})"
