"""From the layers of a model to the kernels that one GPU runs for them: the latency plan's fold.

Which products and kernels a layer has is known to its kind (`model/layers`); here each becomes a `LinearOp`
of this GPU. Attention itself is in `attention`, routed experts and their exchange in `moe`.
"""

from __future__ import annotations

from collections.abc import Iterable

from simserve.core.operation import Operation
from simserve.latency.blocks.attention import attention_layers
from simserve.latency.blocks.moe import add_routed
from simserve.latency.blocks.plan import GroupLayers, Plan, Setting
from simserve.latency.kernels.collective import all_reduce
from simserve.latency.kernels.gemm import elementwise, elementwise_if_measured
from simserve.latency.tables.roofline import LinearOp
from simserve.model.layers import Attention, Ffn, MoeFfn
from simserve.model.layers.base import AllReduce, Block, Rows
from simserve.model.spec import LayerGroup


def block_ops(block: Block, setting: Setting, group: Operation) -> list[LinearOp]:
    """Return the products of a block in order, each with the kernels that follow it.

    They count as `group`, except for norms and collectives.
    """
    ops = list(_rows(block.after.get("", ()), setting))
    for name, product in setting.gemms(block.parts).items():
        ops.append(product)
        ops += _rows(block.after.get(name, ()), setting)
    return [op._replace(group=group) if op.group is Operation.OTHER else op for op in ops]


def _rows(rows: Iterable[Rows | AllReduce], setting: Setting) -> list[LinearOp]:
    machine, tp = setting.machine, setting.parallel.tp
    ops: list[LinearOp] = []
    for row in rows:
        if isinstance(row, AllReduce):
            if tp > 1:
                ops.append(all_reduce(machine, row.name, tp, row.bytes))
        elif row.only_measured:
            ops += elementwise_if_measured(machine, row.name, row.bytes, row.kind)
        elif row.start_us is None:
            ops.append(elementwise(machine, row.name, row.bytes, row.kind))
        elif machine.sm_arch in row.start_us:
            start_us = row.start_us[machine.sm_arch]
            ops.append(elementwise(machine, row.name, row.bytes, row.kind, start_us))
    return ops


def add_group(plan: Plan, group: LayerGroup, setting: Setting) -> None:
    """Add the layers of a group to the plan. Raises `ScenarioError` if TP cannot split their heads."""
    known = len(plan.groups)
    for attention in group.attentions:
        _add_attention(plan, attention, setting, group.count)
    for ffn in group.ffns:
        _add_ffn(plan, ffn, setting, group.count)
    if group.residual is not None:
        plan.add(_rows(group.residual.rows(setting.shard), setting), group.count * group.blocks)
    if len(plan.groups) > known and len(group.attentions) > 1:
        plan.groups[-1] = _shortcut(plan.groups[-1], group, setting)


def _shortcut(layers: GroupLayers, group: LayerGroup, setting: Setting) -> GroupLayers:
    """Return the MoE layers with what a shortcut lets them run beside: all but the first attention."""
    rest = Plan()
    for attention in group.attentions[1:]:
        _add_attention(rest, attention, setting, group.count)
    for ffn in group.ffns:
        if not isinstance(ffn, MoeFfn):
            _add_ffn(rest, ffn, setting, group.count)
    attentions = group.count * (len(group.attentions) - 1)
    return layers._replace(beside=rest.per_token, beside_attentions=attentions)


def _add_attention(plan: Plan, attention: Attention, setting: Setting, times: int) -> None:
    shape = attention.core(setting.parallel.tp)
    plan.add(block_ops(attention.block(setting.shard), setting, Operation.PROJECTIONS), times)
    plan.attention.append(attention_layers(shape, attention, setting, times))


def _add_ffn(plan: Plan, ffn: Ffn, setting: Setting, times: int) -> None:
    entry = block_ops(ffn.entry(setting.shard), setting, Operation.EXPERTS)
    entry = [op._replace(core_to_dispatch=op.group is Operation.EXPERTS) for op in entry]
    if setting.remote_ffn:
        plan.add(entry, times)
        return
    body = block_ops(ffn.body(setting.shard), setting, Operation.MLP)
    if isinstance(ffn, MoeFfn):
        add_routed(plan, ffn, entry, body, setting, times)
    else:
        plan.add(entry + body, times)
