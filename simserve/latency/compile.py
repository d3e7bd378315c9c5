"""From (model, GPU, parallelism, dtypes, engine) to a `StepLatency`: here the blocks are chosen."""

from __future__ import annotations

from typing import Unpack

from simserve.hardware import GpuSpec
from simserve.latency.blocks.dense import add_dense
from simserve.latency.blocks.ends import add_embedding, add_head
from simserve.latency.blocks.gqa import add_gqa
from simserve.latency.blocks.linear import add_linear
from simserve.latency.blocks.mla import add_mla
from simserve.latency.blocks.moe import add_moe
from simserve.latency.blocks.plan import GroupLayers, Plan, Setting
from simserve.latency.kernels.collective import hand_over
from simserve.latency.launches import with_measured_launches
from simserve.latency.overhead import VLLM, EngineOverhead
from simserve.latency.roofline import BYTES
from simserve.latency.setting import KernelSettings, setting_of
from simserve.latency.table_latency import TableLatency
from simserve.model.parallel import Parallelism
from simserve.model.spec import Attention, DenseFfn, Ffn, GqaAttention, LayerGroup, MlaAttention, ModelSpec
from simserve.model.stages import pipeline_stages

REFERENCE = (256, 1024)
"""Sequences and mean context of the decode step by which the slowest pipeline stage is found."""


def compile_step_latency(
    spec: ModelSpec,
    gpu: GpuSpec,
    parallelism: Parallelism,
    *,
    overhead: EngineOverhead = VLLM,
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
            _add_group(plan, group, setting)
        if stage.last:
            add_head(plan, spec, setting)
        plans.append(plan)
    return plans, kinds


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
