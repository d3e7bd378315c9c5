"""Steps of attention ranks whose FFN layers run on GPUs of their own, with microbatches on the way between.

Attention-FFN disaggregation as in MegaScale-Infer (arXiv 2504.02263) and Step-3 (arXiv 2507.19427): each rank
splits its batch in microbatches; while one is at the FFN GPUs or on the network, another attends. Every part
is costed at the size of a microbatch, so that splitting can lose. Ranks meet at the FFN, as at any MoE layer.
A step ends when its last microbatch has: the pipeline fills anew in each (engines let microbatches run on).
Embedding, head and sampling count as part of the attention side's work in every layer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, Unpack

import numpy as np

from simserve.core.operation import Operation
from simserve.errors import ScenarioError
from simserve.hardware import GpuSpec
from simserve.latency.blocks.layers import block_ops
from simserve.latency.blocks.moe import experts_of
from simserve.latency.blocks.plan import Setting
from simserve.latency.compile import CopySettings, distinct_plans, setting_of
from simserve.latency.ffn_side import FfnSide, RemoteExperts, RemoteLayers
from simserve.latency.kernels.exchange import Network, NetworkHop, Sides, TableHop
from simserve.latency.lockstep import Int64, LockstepLatency
from simserve.latency.overhead import IDEAL, EngineOverhead, with_measured_launches
from simserve.latency.overlap import NO_OVERRIDES, Parts, pingpong_ns
from simserve.latency.step_time import TableLatency
from simserve.model.layers import MoeFfn
from simserve.model.spec import LayerGroup, ModelSpec, Parallelism


class AfdLatency(LockstepLatency):
    """Step times of one group: `ranks` that attend, and the FFN GPUs that they share."""

    def __init__(
        self,
        rank: TableLatency,
        overhead: EngineOverhead,
        ranks: int,
        ffn: FfnSide,
        microbatches: int,
        *,
        estimated: tuple[str, ...] = (),
    ) -> None:
        """`rank` prices attention alone."""
        super().__init__(rank, overhead, ranks, NO_OVERRIDES, estimated=estimated)
        self._moe = ffn
        self._microbatches = microbatches

    def _pieces(self, working: int, fewest: int, most: int, least: int) -> int:
        """Return the microbatches that the fullest rank makes: no more than it has tokens."""
        return -(-most // -(-most // self._microbatches))

    def _compose(
        self, parts: Parts, pieces: int, attention_ns: Int64, run_tokens: int, prompts: bool
    ) -> Int64:
        each_layer = parts.local / parts.layers
        return np.rint(pingpong_ns(each_layer, parts.by_layer, pieces)).astype(np.int64)


# From (model, GPUs of both sides, dtypes, engine) to the step times of attention-FFN disaggregation.


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
    overhead: EngineOverhead,
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
                f"is not possible: layers of {spec.name} have {len(group.attentions)} attentions "
                f"and {len(group.ffns)} feed-forward blocks, not one of each",
                "afd",
            )


def _sides(gpu: GpuSpec, parallelism: Parallelism, ffn: FfnGpus) -> Sides:
    attention = parallelism.tp * parallelism.dp
    nodes = -(-attention // gpu.gpus_per_node) + -(-ffn.gpus // ffn.gpu.gpus_per_node)
    return Sides(attention, parallelism.tp, ffn.gpus, nodes, ffn.gpu.gpus_per_node)


def _remote(
    group: LayerGroup, own: Setting, theirs: Setting, sides: Sides, network: Network | None
) -> RemoteLayers:
    """Return the layers as the FFN side has them."""
    ffn = group.ffns[0]
    if isinstance(ffn, MoeFfn):
        experts = experts_of(ffn, theirs)
        topk, slots, routed = experts.topk, ffn.n_routed_experts, RemoteExperts(theirs, experts)
    else:
        topk, slots, routed = 0.0, 1, None
    hops = []
    for phase in ("dispatch", "combine"):
        if network is None:
            hop = TableHop(own.machine, phase, own.hidden, topk, slots, sides)
        else:
            hop = NetworkHop(theirs.machine, phase, own.hidden, topk, sides, network)
        hops.append(hop.cost)
    local = block_ops(ffn.body(theirs.shard), theirs, Operation.MLP)
    return RemoteLayers(hops[0], hops[1], local, routed, group.count)
