"""From (model, GPU, parallelism, dtypes, engine) to a `StepLatency`: here the blocks are chosen."""

from __future__ import annotations

from typing import Literal, TypedDict, Unpack

from simserve.errors import ScenarioError, nearest
from simserve.hardware import GpuSpec
from simserve.latency.blocks.layers import add_group
from simserve.latency.blocks.plan import All2All, Plan, Setting, add_embedding, add_head
from simserve.latency.kernels import Machine
from simserve.latency.kernels.collective import hand_over
from simserve.latency.kernels.experts import ExpertLoad
from simserve.latency.kernels.machine import MoeBackend
from simserve.latency.lockstep import LockstepLatency
from simserve.latency.overhead import IDEAL, EngineOverhead, with_measured_launches
from simserve.latency.overlap import NO_OVERRIDES, OverlapSpec
from simserve.latency.step_time import TableLatency
from simserve.latency.tables.profiles import ProfileStore, shipped_profiles
from simserve.latency.tables.roofline import BYTES, peaks_of
from simserve.model.dtypes import WeightsDtype, kernel_types
from simserve.model.spec import ModelSpec, Parallelism, pipeline_stages

# What is said about a deployment's kernels whatever is compiled from them, and what blocks make of it.

Analytic = Literal["allow", "refuse"]


class KernelSettings(TypedDict, total=False):
    """Types, load and profiles; defaults as in `setting_of`."""

    weights_dtype: WeightsDtype
    """Of the layers' matrices, or of each part; embedding, router and head stay at 16 bit."""
    kv_dtype: str
    experts_dtype: str | None
    """Of routed experts, where it differs (gpt-oss: bf16 and mxfp4)."""
    expert_load: ExpertLoad
    moe_backend: MoeBackend | None
    """The kernel of routed experts; None: the engine's own choice."""
    profiles: ProfileStore | None
    """None: those that ship."""
    max_model_len: int | None
    """Longest context that the engine was started with; None: the model's."""
    analytic: Analytic
    """What to do without a measured table: refuse raises `ProfileError`; allow costs the kernel by roofline,
    tagged so, and names it in `estimated`."""


class CopySettings(KernelSettings, total=False):
    """The same of ranks that step together, which may hold copies of experts."""

    redundant_experts: int


class GroupSettings(CopySettings, total=False):
    """The same of ranks that exchange their tokens among themselves."""

    all2all: All2All


def setting_of(
    spec: ModelSpec,
    gpu: GpuSpec,
    parallelism: Parallelism,
    *,
    engine: str = "vllm",
    lockstep: bool = False,
    **settings: Unpack[GroupSettings],
) -> Setting:
    """Return what every block needs to know; `settings` that are not given have the defaults below."""
    kv_dtype = settings.get("kv_dtype", "bf16")
    _check_dtype(kv_dtype)
    machine = Machine(
        gpu.name,
        peaks_of(gpu),
        settings.get("profiles") or shipped_profiles(),
        settings.get("analytic", "allow") == "allow",
        gpu.sm_arch,
        gpu.gpus_per_node,
        engine,
        settings.get("moe_backend"),
    )
    return Setting(
        machine,
        spec.hidden_size,
        parallelism,
        kernel_types(settings.get("weights_dtype", "bf16"), settings.get("experts_dtype")),
        kv_dtype,
        settings.get("expert_load", "uniform"),
        gpu.gpus_per_node,
        lockstep,
        settings.get("all2all", "deepep"),
        settings.get("redundant_experts", 0),
        max_model_len=settings.get("max_model_len") or spec.max_position_embeddings,
    )


def _check_dtype(kv_dtype: str) -> None:
    if kv_dtype not in BYTES:
        hint = nearest(kv_dtype, BYTES)
        raise ScenarioError(f"kv_dtype: unknown dtype {kv_dtype!r}{hint}; known: {', '.join(BYTES)}")


REFERENCE = (256, 1024)
"""Sequences and mean context of the decode step by which the slowest pipeline stage is found."""


def compile_step_latency(
    spec: ModelSpec,
    gpu: GpuSpec,
    parallelism: Parallelism,
    *,
    overhead: EngineOverhead,
    **settings: Unpack[KernelSettings],
) -> TableLatency:
    """Compile the step latency of one replica; `settings` are types, expert load and profiles.

    With DP-attention (`dp` > 1) the decodes and chunks of a step are those of one attention rank, and every
    rank is taken to carry the same.
    """
    setting = setting_of(spec, gpu, parallelism, engine=overhead.kernels, **settings)
    machine = setting.machine
    plans, kinds = stage_plans(spec, setting)
    hop = None
    if parallelism.pp > 1:  # what a layer returns, and the residual stream
        hop = hand_over(machine, 2 * spec.hidden_size * BYTES[setting.activation_dtype])
    estimated = tuple(machine.estimated)
    latencies = [
        TableLatency(plan, with_measured_launches(overhead, machine, plan), parallelism.pp, hop, estimated)
        for plan in plans
    ]
    sequences, context = REFERENCE
    slowest = max(latencies, key=lambda latency: latency.step_ns(sequences, sequences * context, ()))
    slowest.forget()
    slowest.stage_latencies = tuple(latencies[kind] for kind in kinds)
    return slowest


def distinct_plans(spec: ModelSpec, setting: Setting) -> list[Plan]:
    """Return the plan of each pipeline stage, equal ones once."""
    return stage_plans(spec, setting)[0]


def stage_plans(spec: ModelSpec, setting: Setting) -> tuple[list[Plan], list[int]]:
    """Return the distinct plans of the pipeline stages, and which of them each stage runs."""
    plans, seen, kinds = [], [], []
    for stage in pipeline_stages(spec, setting.parallel.pp):
        kind = (stage.layers, stage.first, stage.last)
        if kind in seen:
            kinds.append(seen.index(kind))
            continue
        kinds.append(len(seen))
        seen.append(kind)
        plan = Plan(layers=sum(stage.layers))
        if stage.first:
            add_embedding(plan, setting)
        for group in stage.groups(spec):
            add_group(plan, group, setting)
        if stage.last:
            add_head(plan, spec, setting)
        plans.append(plan)
    return plans, kinds


# From (model, GPU, parallelism, dtypes, engine) to the step times of ranks that step together.


def compile_lockstep_latency(
    spec: ModelSpec,
    gpu: GpuSpec,
    parallelism: Parallelism,
    *,
    overlap: OverlapSpec = NO_OVERRIDES,
    solve_us: float = 0.0,
    overhead: EngineOverhead,
    **settings: Unpack[GroupSettings],
) -> LockstepLatency:
    """Compile the step times of one group of `dp` ranks (arguments as in `compile_step_latency`).

    `solve_us` is what balancing each batch anew costs per MoE layer.
    """
    if parallelism.pp > 1:
        raise ScenarioError("is not possible for ranks that step together", "pp", parallelism.pp, "1")
    setting = setting_of(spec, gpu, parallelism, engine=overhead.kernels, lockstep=True, **settings)
    (plan,) = distinct_plans(spec, setting)
    rank = TableLatency(plan, IDEAL)
    overhead = with_measured_launches(overhead, setting.machine, plan)
    estimated = tuple(setting.machine.estimated)
    return LockstepLatency(rank, overhead, parallelism.dp, overlap, estimated=estimated, solve_us=solve_us)
