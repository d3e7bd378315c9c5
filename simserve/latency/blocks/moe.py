"""Routed experts: estimated for now."""

from __future__ import annotations

from simserve.latency.blocks.dense import mlp_ops
from simserve.latency.blocks.plan import Plan, Setting
from simserve.latency.costs import Cost, LinearOp, analytic
from simserve.latency.grid import Float64
from simserve.latency.kernels.collective import all_reduce
from simserve.latency.kernels.elementwise import elementwise
from simserve.latency.kernels.gemm import gemm
from simserve.latency.roofline import BYTES
from simserve.model.spec import MoeFfn


def add_moe(plan: Plan, ffn: MoeFfn, setting: Setting, times: int) -> None:
    """Add `times` layers of this block to the plan."""
    machine, hidden, width = setting.machine, setting.hidden, BYTES[setting.activation_dtype]
    ops = [
        elementwise(machine, "norm", 4 * hidden * width),
        gemm(machine, "router gate", "bf16", ffn.n_routed_experts + ffn.zero_experts, hidden),
        LinearOp("routed experts", _routed(ffn, setting)),
    ]
    if ffn.shared_intermediate_size:
        ops += mlp_ops(setting, "shared expert", ffn.shared_intermediate_size, setting.parallel.tp)
    if setting.parallel.tp > 1:
        ops.append(all_reduce(machine, "MoE all-reduce", setting.parallel.tp, hidden * width))
    plan.add(ops, times)


def _routed(ffn: MoeFfn, setting: Setting):
    dtype = setting.weights_dtype
    shards = max(setting.parallel.tp, setting.parallel.ep)
    matrix = 3.0 * setting.hidden * ffn.moe_intermediate_size

    def cost(tokens: Float64) -> Cost:
        experts = ffn.n_routed_experts
        share = ffn.num_experts_per_tok / experts
        touched = experts * (1.0 - (1.0 - share) ** tokens)
        flops = 2.0 * matrix * tokens * ffn.num_experts_per_tok / shards
        return analytic(
            setting.machine.peaks.analytic_us(flops, touched * matrix * BYTES[dtype] / shards, dtype)
        )

    return cost
