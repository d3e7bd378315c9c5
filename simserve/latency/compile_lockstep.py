"""From (model, GPU, parallelism, dtypes, engine) to the step times of ranks that step together."""

from __future__ import annotations

from typing import Unpack

from simserve.errors import ScenarioError
from simserve.hardware import GpuSpec
from simserve.latency.compile import distinct_plans
from simserve.latency.launches import with_measured_launches
from simserve.latency.lockstep import LockstepLatency
from simserve.latency.overhead import IDEAL, VLLM, EngineOverhead
from simserve.latency.overlap import NO_OVERRIDES, OverlapSpec
from simserve.latency.setting import GroupSettings, setting_of
from simserve.latency.table_latency import TableLatency
from simserve.model.parallel import Parallelism
from simserve.model.spec import ModelSpec


def compile_lockstep_latency(
    spec: ModelSpec,
    gpu: GpuSpec,
    parallelism: Parallelism,
    *,
    overlap: OverlapSpec = NO_OVERRIDES,
    solve_us: float = 0.0,
    overhead: EngineOverhead = VLLM,
    **settings: Unpack[GroupSettings],
) -> LockstepLatency:
    """Compile the step times of one group of `dp` ranks (arguments as in `compile_step_latency`).

    `solve_us` is what balancing each batch anew costs per MoE layer.
    """
    if parallelism.pp > 1:
        raise ScenarioError(f"pp = {parallelism.pp}, allowed is 1 for ranks that step together")
    setting = setting_of(spec, gpu, parallelism, engine=overhead.kernels, lockstep=True, **settings)
    (plan,) = distinct_plans(spec, setting)
    rank = TableLatency(plan, IDEAL)
    overhead = with_measured_launches(overhead, setting.machine, plan)
    estimated = tuple(setting.machine.estimated)
    return LockstepLatency(rank, overhead, parallelism.dp, overlap, estimated=estimated, solve_us=solve_us)
