"""Dense feed-forward blocks: gated (two products, up and gate fused) or the classic pair."""

from __future__ import annotations

from collections.abc import Iterable

from simserve.latency.blocks.plan import Plan, Setting, followed
from simserve.latency.kernels.collective import all_reduce
from simserve.latency.kernels.gemm import elementwise
from simserve.latency.tables.roofline import BYTES, LinearOp
from simserve.model.parts import Part, ffn_parts, products
from simserve.model.spec import DenseFfn


def add_dense(plan: Plan, ffn: DenseFfn, setting: Setting, times: int) -> None:
    """Add `times` layers of this MLP to the plan."""
    width = BYTES[setting.activation_dtype]
    ops = [elementwise(setting.machine, "norm", 4 * setting.hidden * width)]
    if setting.remote_ffn:
        plan.add(ops, times)
        return
    ops += mlp_ops(setting, "MLP", ffn_parts(ffn, setting.hidden), setting.parallel.tp)
    if setting.parallel.tp > 1:
        ops.append(all_reduce(setting.machine, "MLP all-reduce", setting.parallel.tp, setting.hidden * width))
    plan.add(ops, times)


def mlp_ops(setting: Setting, name: str, parts: Iterable[Part], tp: int) -> list[LinearOp]:
    """Return the products and the activation of the MLP of that name, split over `tp` GPUs."""
    parts = list(parts)
    shapes = products(parts, tp)
    values = shapes[f"{name} up"].n + shapes[f"{name} down"].k
    width = BYTES[setting.activation_dtype]
    activation = elementwise(setting.machine, f"{name} activation", values * width)
    return followed(setting.gemms(parts, tp), {f"{name} up": [activation]})
