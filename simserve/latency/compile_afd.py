"""From (model, GPUs of both sides, dtypes, engine) to the step times of attention-FFN disaggregation."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, Unpack

from simserve.errors import ScenarioError
from simserve.hardware import GpuSpec
from simserve.latency.afd import AfdLatency
from simserve.latency.blocks.dense import mlp_ops
from simserve.latency.blocks.moe import experts_of
from simserve.latency.blocks.plan import Setting
from simserve.latency.compile import distinct_plans
from simserve.latency.ffn_side import FfnSide, RemoteExperts, RemoteLayers
from simserve.latency.kernels.hop import Network, NetworkHop, Sides, TableHop
from simserve.latency.launches import with_measured_launches
from simserve.latency.overhead import IDEAL, VLLM, EngineOverhead
from simserve.latency.setting import CopySettings, setting_of
from simserve.latency.table_latency import TableLatency
from simserve.model.parallel import Parallelism
from simserve.model.parts import ffn_parts, shared_parts
from simserve.model.spec import Ffn, LayerGroup, ModelSpec, MoeFfn


class FfnGpus(NamedTuple):
    """The FFN side of a group, and how microbatches get there."""

    gpu: GpuSpec
    gpus: int
    microbatches: int
    network: Network | None
    """None: the hop is looked up in the exchange tables."""


def compile_afd_latency(
    spec: ModelSpec,
    gpu: GpuSpec,
    parallelism: Parallelism,
    ffn: FfnGpus,
    *,
    solve_us: float = 0.0,
    overhead: EngineOverhead = VLLM,
    **settings: Unpack[CopySettings],
) -> AfdLatency:
    """Compile the step times of one group: `dp` attention ranks of `tp` GPUs each, and the FFN GPUs.

    Arguments as in `compile_lockstep_latency`. Raises `ScenarioError` for models whose layers do not go from
    one attention to one FFN.
    """
    check_alternating(spec)

    def setting(side: GpuSpec, degrees: Parallelism) -> Setting:
        return setting_of(spec, side, degrees, engine=overhead.kernels, lockstep=True, **settings)

    own = replace(setting(gpu, Parallelism(tp=parallelism.tp, dp=parallelism.dp)), remote_ffn=True)
    theirs = setting(ffn.gpu, Parallelism(dp=ffn.gpus, ep=ffn.gpus))
    (plan,) = distinct_plans(spec, own)
    sides = _sides(gpu, parallelism, ffn)
    kinds = [_remote(group, own, theirs, sides, ffn.network) for group in spec.layers]
    rank = TableLatency(plan, IDEAL)
    estimated = tuple(dict.fromkeys([*own.machine.estimated, *theirs.machine.estimated]))
    overhead = with_measured_launches(overhead, own.machine, plan)
    side = FfnSide(kinds, ffn.gpus, solve_us)
    return AfdLatency(rank, overhead, parallelism.dp, side, ffn.microbatches, estimated=estimated)


def check_alternating(spec: ModelSpec) -> None:
    """Raise `ScenarioError` unless every layer goes from one attention to one FFN."""
    for group in spec.layers:
        if len(group.attentions) != 1 or len(group.ffns) != 1:
            raise ScenarioError(
                f"afd = ..., allowed is none: layers of {spec.name} have {len(group.attentions)} attentions "
                f"and {len(group.ffns)} feed-forward blocks, not one of each"
            )


def _sides(gpu: GpuSpec, parallelism: Parallelism, ffn: FfnGpus) -> Sides:
    attention = parallelism.tp * parallelism.dp
    nodes = -(-attention // gpu.gpus_per_node) + -(-ffn.gpus // ffn.gpu.gpus_per_node)
    return Sides(attention, parallelism.tp, ffn.gpus, nodes, ffn.gpu.gpus_per_node)


def _remote(
    group: LayerGroup, own: Setting, theirs: Setting, sides: Sides, network: Network | None
) -> RemoteLayers:
    """Return the layers as the FFN side has them."""
    ffn: Ffn = group.ffns[0]
    if isinstance(ffn, MoeFfn):
        experts = experts_of(ffn, theirs)
        topk, slots, routed = experts.topk, ffn.n_routed_experts, RemoteExperts(theirs, experts)
        name, parts = "shared expert", shared_parts(ffn, own.hidden)
    else:
        topk, slots, routed = 0.0, 1, None
        name, parts = "MLP", list(ffn_parts(ffn, own.hidden))
    hops = []
    for phase in ("dispatch", "combine"):
        if network is None:
            hop = TableHop(own.machine, phase, own.hidden, topk, slots, sides)
        else:
            hop = NetworkHop(theirs.machine, phase, own.hidden, topk, sides, network)
        hops.append(hop.cost)
    local = mlp_ops(theirs, name, parts, 1) if parts else []
    return RemoteLayers(hops[0], hops[1], local, routed, group.count)
