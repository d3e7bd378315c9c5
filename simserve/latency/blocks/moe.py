"""Routed experts, and how tokens reach them.

Three ways, as vLLM and SGLang have them: without DP-attention every rank holds all tokens and one
all-reduce sums the experts' outputs (with or without EP); with DP-attention and no EP, tokens are
gathered first and scattered after; with DP-attention and EP, DeepEP dispatches and combines them. With
DP-attention the step's tokens are those of one attention rank, and all ranks are taken to carry the same.
"""

from __future__ import annotations

from simserve.core.operation import Operation
from simserve.errors import ScenarioError
from simserve.latency.blocks.plan import GroupLayers, Plan, Setting
from simserve.latency.kernels.collective import all_reduce, collective
from simserve.latency.kernels.exchange import LOW_LATENCY_MAX_TOKENS, ExpertExchange
from simserve.latency.kernels.expert_rows import Experts
from simserve.latency.kernels.experts import RoutedExperts
from simserve.latency.moe import EpGroup, GatheredGroup
from simserve.latency.tables.grid import Float64
from simserve.latency.tables.roofline import BYTES, Cost, LinearOp
from simserve.model.layers import MoeFfn
from simserve.model.layers.moe import ROUTED


def add_routed(
    plan: Plan, ffn: MoeFfn, entry: list[LinearOp], shared: list[LinearOp], setting: Setting, times: int
) -> None:
    """Add `times` layers of this block: its `entry` (norm and router), `shared` expert and routed ones."""
    if not setting.lockstep or setting.parallel.dp * setting.parallel.ep == 1:
        plan.add(entry + shared + _routed(ffn, setting), times)
        return
    if setting.parallel.ep > 1 and setting.parallel.dp > 1:
        plan.add(entry, times)
        kernels = EpGroup(setting, ffn, experts_of(ffn, setting))
    else:
        plan.add(entry + shared, times)
        shared = []
        kernels = GatheredGroup(setting, experts_of(ffn, setting))
    plan.groups.append(GroupLayers(kernels, shared, [], 0.0, times))


def experts_of(ffn: MoeFfn, setting: Setting) -> Experts:
    """Return the routed experts as the kernels see them; a redundant copy is one expert more."""
    parallel = setting.parallel
    group = parallel.tp * parallel.dp
    if group % parallel.ep:
        raise ScenarioError(f"ep: {parallel.ep} does not divide tp * dp = {group}")
    slots = ffn.n_routed_experts + setting.redundant_experts
    if parallel.ep > slots:
        raise ScenarioError(f"ep: {parallel.ep} is more than the {slots} routed experts")
    return Experts(
        setting.hidden,
        ffn.moe_intermediate_size,
        slots,
        ffn.real_picks,
        group // parallel.ep,
        parallel.ep,
        setting.dtype_of("routed_expert"),
    )


def _routed(ffn: MoeFfn, setting: Setting) -> list[LinearOp]:
    parallel, machine = setting.parallel, setting.machine
    experts = experts_of(ffn, setting)
    group = parallel.tp * parallel.dp
    row = setting.hidden * BYTES[setting.activation_dtype]
    if parallel.dp == 1:
        ops = [_experts_op(RoutedExperts(machine, experts, setting.expert_load), 1)]
        if group > 1:
            ops.append(all_reduce(machine, "MoE all-reduce", group, row))
        return ops
    if parallel.ep == 1:
        routed = RoutedExperts(machine, experts, setting.expert_load)
        return [
            collective(machine, "token all-gather", "all_gather", group, row * parallel.dp),
            _experts_op(routed, parallel.dp),
            collective(machine, "token reduce-scatter", "reduce_scatter", group, row * parallel.dp),
        ]
    return _expert_parallel(ffn, setting, experts)


def _expert_parallel(ffn: MoeFfn, setting: Setting, experts: Experts) -> list[LinearOp]:
    """Return dispatch, experts and combine; `tokens` are one rank's, the experts see those of all ranks."""
    machine, parallel = setting.machine, setting.parallel
    ranks = parallel.ep
    nodes = -(-ranks // setting.gpus_per_node)
    exchange = (setting.hidden, ffn.num_experts_per_tok, ffn.n_routed_experts, ranks, nodes)
    dispatch, combine = (ExpertExchange(machine, phase, *exchange) for phase in ("dispatch", "combine"))
    small, large = (
        RoutedExperts(machine, experts, setting.expert_load, phase) for phase in ("decode", "prefill")
    )

    def routed(tokens: Float64) -> Cost:
        group_tokens = tokens * parallel.dp
        below = tokens <= LOW_LATENCY_MAX_TOKENS
        return small.cost(group_tokens).where(below, large.cost(group_tokens))

    return [
        LinearOp("dispatch", dispatch.cost, group=Operation.COLLECTIVES),
        LinearOp(ROUTED, routed, weights=small.weights, group=Operation.EXPERTS),
        LinearOp("combine", combine.cost, group=Operation.COLLECTIVES),
    ]


def _experts_op(routed: RoutedExperts, factor: int) -> LinearOp:
    def cost(tokens: Float64) -> Cost:
        return routed.cost(tokens * factor)

    return LinearOp(ROUTED, cost, weights=routed.weights, group=Operation.EXPERTS)
