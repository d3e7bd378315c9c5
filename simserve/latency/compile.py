"""From (model, GPU, parallelism, dtypes, engine) to a `StepLatency`: here the blocks are chosen."""

from __future__ import annotations

from typing import Literal

from simserve.errors import ScenarioError, nearest
from simserve.hardware import GpuSpec
from simserve.latency.blocks.dense import add_dense
from simserve.latency.blocks.ends import add_embedding, add_head
from simserve.latency.blocks.gqa import add_gqa
from simserve.latency.blocks.linear import add_linear
from simserve.latency.blocks.mla import add_mla
from simserve.latency.blocks.moe import add_moe
from simserve.latency.blocks.plan import All2All, GroupLayers, Plan, Setting
from simserve.latency.kernels import Machine
from simserve.latency.kernels.collective import hop_us
from simserve.latency.kernels.experts import ExpertLoad
from simserve.latency.launches import with_measured_launches
from simserve.latency.overhead import VLLM, EngineOverhead
from simserve.latency.profiles import ProfileStore, shipped_profiles
from simserve.latency.roofline import BYTES, peaks_of
from simserve.latency.stages import stage_layers
from simserve.latency.table_latency import TableLatency
from simserve.model.parallel import Parallelism
from simserve.model.spec import Attention, DenseFfn, Ffn, GqaAttention, LayerGroup, MlaAttention, ModelSpec

REFERENCE = (256, 1024)
"""Sequences and mean context of the decode step by which the slowest pipeline stage is found."""


def compile_step_latency(
    spec: ModelSpec,
    gpu: GpuSpec,
    parallelism: Parallelism,
    *,
    weights_dtype: str = "bf16",
    kv_dtype: str = "bf16",
    experts_dtype: str | None = None,
    expert_load: ExpertLoad = "uniform",
    overhead: EngineOverhead = VLLM,
    profiles: ProfileStore | None = None,
    analytic: Literal["allow", "refuse"] = "allow",
) -> TableLatency:
    """Compile the step latency of one replica.

    `weights_dtype` is that of the layers' matrices, `experts_dtype` that of routed experts where it
    differs (gpt-oss: bf16 and mxfp4); embedding, router and head stay at 16 bit. With DP-attention (`dp`
    > 1) the decodes and chunks of a step are those of one attention rank, and every rank is taken to
    carry the same. With analytic="refuse", a combination without a measured table raises `ProfileError`;
    with "allow" it is costed by roofline, tagged so, and named in `TableLatency.estimated`.
    """
    setting = setting_of(
        spec,
        gpu,
        parallelism,
        weights_dtype,
        kv_dtype,
        experts_dtype,
        expert_load,
        profiles,
        analytic,
        engine=overhead.kernels,
    )
    machine = setting.machine
    handed_over = 2 * spec.hidden_size * BYTES[setting.activation_dtype]
    start_us = hop_us(machine, 0)
    per_token_us = hop_us(machine, handed_over) - start_us
    plans = distinct_plans(spec, setting)
    hop = (start_us, per_token_us)
    estimated = tuple(machine.estimated)
    latencies = [
        TableLatency(plan, with_measured_launches(overhead, machine, plan), parallelism.pp, hop, estimated)
        for plan in plans
    ]
    sequences, context = REFERENCE
    slowest = max(latencies, key=lambda latency: latency.step_ns(sequences, sequences * context, ()))
    slowest.forget()
    return slowest


def setting_of(
    spec: ModelSpec,
    gpu: GpuSpec,
    parallelism: Parallelism,
    weights_dtype: str,
    kv_dtype: str,
    experts_dtype: str | None,
    expert_load: ExpertLoad,
    profiles: ProfileStore | None,
    analytic: Literal["allow", "refuse"],
    *,
    engine: str = "vllm",
    lockstep: bool = False,
    all2all: All2All = "deepep",
    redundant_experts: int = 0,
) -> Setting:
    """Return what every block needs to know (arguments as in `compile_step_latency`)."""
    _check_dtypes(weights_dtype=weights_dtype, kv_dtype=kv_dtype, experts_dtype=experts_dtype)
    experts_dtype = experts_dtype or weights_dtype
    if weights_dtype == "mxfp4":
        weights_dtype = "bf16"
    store = profiles or shipped_profiles()
    return Setting(
        Machine(gpu.name, peaks_of(gpu), store, analytic == "allow", gpu.sm_arch, gpu.gpus_per_node, engine),
        spec.hidden_size,
        parallelism,
        weights_dtype,
        kv_dtype,
        experts_dtype,
        expert_load,
        gpu.gpus_per_node,
        lockstep,
        all2all,
        redundant_experts,
    )


def _check_dtypes(**dtypes: str | None) -> None:
    for name, dtype in dtypes.items():
        if dtype is not None and dtype not in BYTES:
            hint = nearest(dtype, BYTES)
            raise ScenarioError(f"{name}: unknown dtype {dtype!r}{hint}; known: {', '.join(BYTES)}")


def distinct_plans(spec: ModelSpec, setting: Setting) -> list[Plan]:
    """Return the plan of each pipeline stage, equal ones once."""
    stages = stage_layers(spec.layers, setting.parallel.pp)
    plans, seen = [], []
    for index, groups in enumerate(stages):
        first, last = index == 0, index == len(stages) - 1
        if (groups, first, last) in seen:
            continue
        seen.append((groups, first, last))
        plan = Plan(layers=sum(group.count for group in groups))
        if first:
            add_embedding(plan, setting)
        for group in groups:
            _add_group(plan, group, setting)
        if last:
            add_head(plan, spec, setting)
        plans.append(plan)
    return plans


def _add_group(plan: Plan, group: LayerGroup, setting: Setting) -> None:
    known = len(plan.groups)
    for attention in group.attentions:
        _add_attention(plan, attention, setting, group.count)
    for ffn in group.ffns:
        _add_ffn(plan, ffn, setting, group.count)
    if len(plan.groups) > known and len(group.attentions) > 1:
        plan.groups[-1] = _shortcut(plan.groups[-1], group, setting)


def _shortcut(layers: GroupLayers, group: LayerGroup, setting: Setting) -> GroupLayers:
    """Return the MoE layers with what a shortcut lets them run beside: all but the first attention."""
    rest = Plan()
    for attention in group.attentions[1:]:
        _add_attention(rest, attention, setting, group.count)
    for ffn in group.ffns:
        if isinstance(ffn, DenseFfn):
            add_dense(rest, ffn, setting, group.count)
    attentions = group.count * (len(group.attentions) - 1)
    return layers._replace(beside=rest.per_token, beside_attentions=attentions)


def _add_attention(plan: Plan, attention: Attention, setting: Setting, times: int) -> None:
    if isinstance(attention, GqaAttention):
        add_gqa(plan, attention, setting, times)
    elif isinstance(attention, MlaAttention):
        add_mla(plan, attention, setting, times)
    else:
        add_linear(plan, attention, setting, times)


def _add_ffn(plan: Plan, ffn: Ffn, setting: Setting, times: int) -> None:
    if isinstance(ffn, DenseFfn):
        add_dense(plan, ffn, setting, times)
    else:
        add_moe(plan, ffn, setting, times)
