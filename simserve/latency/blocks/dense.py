"""Dense feed-forward blocks: gated (two products, up and gate fused) or the classic pair."""

from __future__ import annotations

from simserve.latency.blocks.plan import Plan, Setting
from simserve.latency.costs import LinearOp
from simserve.latency.kernels.collective import all_reduce
from simserve.latency.kernels.elementwise import elementwise
from simserve.latency.kernels.gemm import gemm
from simserve.latency.roofline import BYTES
from simserve.model.spec import DenseFfn


def add_dense(plan: Plan, ffn: DenseFfn, setting: Setting, times: int) -> None:
    """Add `times` layers of this MLP to the plan."""
    width = BYTES[setting.activation_dtype]
    ops = [elementwise(setting.machine, "norm", 4 * setting.hidden * width)]
    if setting.remote_ffn:
        plan.add(ops, times)
        return
    ops += mlp_ops(setting, "MLP", ffn.intermediate_size, setting.parallel.tp, ffn.matrices)
    if setting.parallel.tp > 1:
        ops.append(all_reduce(setting.machine, "MLP all-reduce", setting.parallel.tp, setting.hidden * width))
    plan.add(ops, times)


def mlp_ops(setting: Setting, name: str, inter: int, tp: int, matrices: int = 3) -> list[LinearOp]:
    """Return the products and the activation of one MLP split over `tp` GPUs."""
    machine, hidden, dtype = setting.machine, setting.hidden, setting.weights_dtype
    width = BYTES[setting.activation_dtype]
    local = -(-inter // tp)
    up = local * (matrices - 1)
    return [
        gemm(machine, f"{name} up", dtype, up, hidden),
        elementwise(machine, f"{name} activation", (up + local) * width),
        gemm(machine, f"{name} down", dtype, hidden, local),
    ]
