"""From (model, what drafts for it, GPU, parallelism, dtypes, engine) to steps that verify drafts."""

from __future__ import annotations

from typing import Unpack

from simserve.errors import ScenarioError
from simserve.hardware import GpuSpec
from simserve.latency.blocks.plan import Plan, Setting
from simserve.latency.compile import distinct_plans
from simserve.latency.kernels.gemm import gemm
from simserve.latency.launches import with_measured_launches
from simserve.latency.lockstep import LockstepLatency
from simserve.latency.overhead import IDEAL, VLLM, EngineOverhead
from simserve.latency.overlap import NO_OVERRIDES, OverlapSpec
from simserve.latency.setting import GroupSettings, KernelSettings, setting_of
from simserve.latency.speculative import LockstepDrafts, SpeculativeLatency
from simserve.latency.table_latency import TableLatency
from simserve.latency.verifying import DraftPasses, VerifyingLatency
from simserve.model.draft import Drafter
from simserve.model.parallel import Parallelism
from simserve.model.spec import ModelSpec


def compile_verifying_latency(
    spec: ModelSpec,
    gpu: GpuSpec,
    parallelism: Parallelism,
    drafter: Drafter | None,
    drafts: int,
    *,
    overhead: EngineOverhead = VLLM,
    **settings: Unpack[KernelSettings],
) -> VerifyingLatency:
    """Compile the step latency of a replica that verifies `drafts` drafts of each sequence.

    `settings` as in `compile_step_latency`; without a drafter, drafts cost nothing on the GPU.
    """
    told = GroupSettings(**settings)
    plan, setting = _plan(spec, gpu, parallelism, overhead, False, told)
    queries, passes, estimated = drafts + 1, None, tuple(setting.machine.estimated)
    if drafter is not None:
        draft_plan, more = _draft_plan(drafter, gpu, parallelism, overhead, False, told)
        first = VerifyingLatency(draft_plan, IDEAL, queries, sampled=1)
        passes = DraftPasses(first, TableLatency(draft_plan, IDEAL), drafts)
        estimated = _joined(estimated, more)
    overhead = with_measured_launches(overhead, setting.machine, plan)
    return VerifyingLatency(plan, overhead, queries, drafts=passes, estimated=estimated)


def compile_speculative_latency(
    spec: ModelSpec,
    gpu: GpuSpec,
    parallelism: Parallelism,
    drafter: Drafter | None,
    drafts: int,
    *,
    overlap: OverlapSpec = NO_OVERRIDES,
    solve_us: float = 0.0,
    overhead: EngineOverhead = VLLM,
    **settings: Unpack[GroupSettings],
) -> SpeculativeLatency:
    """Compile the step times of a group whose ranks verify drafts (see `compile_lockstep_latency`)."""
    plan, setting = _plan(spec, gpu, parallelism, overhead, True, settings)
    queries, passes, estimated = drafts + 1, None, tuple(setting.machine.estimated)
    ranks = parallelism.dp
    if drafter is not None:
        draft_plan, more = _draft_plan(drafter, gpu, parallelism, overhead, True, settings)
        first = VerifyingLatency(draft_plan, IDEAL, queries, sampled=1)
        passes = LockstepDrafts(
            SpeculativeLatency(first, IDEAL, ranks, overlap),
            LockstepLatency(TableLatency(draft_plan, IDEAL), IDEAL, ranks, overlap),
        )
        estimated = _joined(estimated, more)
    rank = VerifyingLatency(plan, IDEAL, queries)
    overhead = with_measured_launches(overhead, setting.machine, plan)
    return SpeculativeLatency(
        rank, overhead, ranks, overlap, drafts=passes, estimated=estimated, solve_us=solve_us
    )


def _draft_plan(
    drafter: Drafter,
    gpu: GpuSpec,
    parallelism: Parallelism,
    overhead: EngineOverhead,
    lockstep: bool,
    settings: GroupSettings,
) -> tuple[Plan, tuple[str, ...]]:
    """Return the kernels of a draft's pass, and what of them is estimated."""
    if drafter.owns_ends:
        settings = settings | {"experts_dtype": None, "moe_backend": None, "redundant_experts": 0}
    plan, setting = _plan(drafter.spec, gpu, parallelism, overhead, lockstep, settings)
    if drafter.projected:
        hidden, dtype = drafter.spec.hidden_size, setting.activation_dtype
        plan.add([gemm(setting.machine, "draft projection", dtype, hidden, drafter.projected * hidden)], 1)
    return plan, tuple(setting.machine.estimated)


def _plan(
    spec: ModelSpec,
    gpu: GpuSpec,
    parallelism: Parallelism,
    overhead: EngineOverhead,
    lockstep: bool,
    settings: GroupSettings,
) -> tuple[Plan, Setting]:
    if parallelism.pp > 1:
        raise ScenarioError(f"pp = {parallelism.pp}, allowed is 1 with speculation")
    setting = setting_of(spec, gpu, parallelism, engine=overhead.kernels, lockstep=lockstep, **settings)
    (plan,) = distinct_plans(spec, setting)
    return plan, setting


def _joined(target: tuple[str, ...], draft: tuple[str, ...]) -> tuple[str, ...]:
    return target + tuple(f"draft: {line}" for line in draft if line not in target)
