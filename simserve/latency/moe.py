"""MoE layers at which ranks with different loads meet: expert-parallel with an all-to-all, or gathered.

The all-to-all waits for the fullest rank; the experts see the tokens of all. With tensor parallelism
inside a rank (tp > 1) its GPUs share the rank's tokens on the wire.
"""

from __future__ import annotations

import numpy as np

from simserve.experts import contiguous
from simserve.experts.rank_load import RankMaximum
from simserve.latency.blocks.plan import GroupLayers, Setting
from simserve.latency.kernels.collective import all_reduce, collective
from simserve.latency.kernels.exchange import (
    LOW_LATENCY_MAX_TOKENS,
    NORMAL_SMS,
    ExpertExchange,
    TopologyExchange,
)
from simserve.latency.kernels.expert_rows import Experts
from simserve.latency.kernels.experts import RoutedExperts, expert_counts
from simserve.latency.kernels.machine import Machine
from simserve.latency.overlap import Ns, Parts
from simserve.latency.tables.grid import ANALYTIC, INTERPOLATED, Float64
from simserve.latency.tables.roofline import BYTES, Cost, CountedTimes, LinearOp
from simserve.model.layers import MoeFfn

# The MoE layers at which ranks meet: dispatch, the experts of the busiest rank, combine.
#
# Times are sums over all MoE layers, looked up by the tokens of the fullest rank and of all ranks; what is
# uneven beyond the tokens (which experts they pick) comes as a `RankMaximum`.


class MoeLayers:
    """What the ranks of a group do together."""

    def __init__(self, groups: list[GroupLayers], ranks: int, solve_us: float) -> None:
        """`solve_us` comes before the dispatch of each layer."""
        self.layers = sum(group.times for group in groups)
        self._groups = groups
        self._ranks = ranks
        self._solve_us = solve_us
        shared = [op._replace(times=op.times * g.times) for g in groups for op in g.shared]
        self._shared = CountedTimes(shared, 1024)
        self._wires: dict[tuple[int, int], tuple[int, int, Float64]] = {}
        self._experts: dict[tuple[int, bool], tuple[int, Float64]] = {}
        self._maximum: RankMaximum | None = None
        self._even: dict[tuple[int, int], RankMaximum] = {}

    def parts(
        self, local_ns: Ns, most: int, total: int, maximum: RankMaximum | None, shared_apart: bool
    ) -> Parts:
        """Return the parts of steps whose slowest rank computes for `local_ns` by itself (int64[k]).

        `most` tokens are on the fullest rank, `total` on all; `maximum` knows the busiest expert rank (None:
        all even). The shared expert is kept apart, or counted with `local_ns`.
        """
        if not self._groups:
            return Parts(local_ns, 0, 0, 0, 0, 0)
        experts_ns, _ = self._experts_ns(most, total, maximum)
        dispatch_ns, combine_ns, _ = self._wire(most, self._received(most, total, maximum))
        shared_ns = self._shared.at(most)
        if not shared_apart:
            local_ns, shared_ns = local_ns + shared_ns, 0
        sms = self._groups[0].kernels.share_of_sms(most)
        return Parts(local_ns, shared_ns, dispatch_ns, experts_ns, combine_ns, self.layers, sms)

    def provenance_ns(self, most: int, total: int, shared_ns: int) -> Float64:
        """Return ns by `PROVENANCE` of what is not local in the parts asked for last, float64[4]."""
        if not self._groups:
            return np.zeros(4)
        received = self._received(most, total, self._maximum)
        by_tag = self._wire(most, received)[2] + self._experts_ns(most, total, self._maximum)[1]
        by_tag[INTERPOLATED] += shared_ns
        return by_tag

    def _received(self, most: int, total: int, maximum: RankMaximum | None) -> int:
        """Return the tokens per rank at which an even exchange takes as long: what the fullest rank sends,
        or what the busiest receives.

        Measured exchanges had uniform picks, whose own unevenness is taken off. Where tokens take near copies
        the network, which bounds an exchange of several nodes, carries so much less.
        """
        together = self._groups[0].kernels.ranks_per_port(most)
        if maximum is None or not together:
            return most
        gamma = maximum.port_gamma(total, together) / self._even_of(maximum).port_gamma(total, together)
        return max(1, round(max(most, gamma * total / self._ranks) * maximum.crossing))

    def _even_of(self, maximum: RankMaximum) -> RankMaximum:
        """Return uniform picks on the same ranks, for comparison (few layers are enough)."""
        shares, ranks = maximum.shares, maximum.placement.ranks
        key = (shares.shape[1], ranks)
        if key not in self._even:
            picks = np.full((8, shares.shape[1]), shares[0].sum() / shares.shape[1])
            even = contiguous(8, shares.shape[1], ranks, -shares.shape[1] % ranks)
            self._even[key] = RankMaximum(picks, even)
        return self._even[key]

    def _wire(self, sent: int, received: int) -> tuple[int, int, Float64]:
        """Return dispatch and combine of all layers in ns, and their ns by provenance, float64[4]."""
        key = (sent, received)
        found = self._wires.get(key)
        if found is None:
            ends, parts = [0.0, 0.0], np.zeros(4)
            for group in self._groups:
                costs = group.kernels.wire(np.array([float(sent)]), np.array([float(received)]))
                for end, cost in enumerate(costs):
                    ends[end] += float(cost.us[0]) * group.times
                    parts[int(cost.tags[0])] += 1000 * float(cost.us[0]) * group.times
            solve_us = self._solve_us * self.layers
            parts[ANALYTIC] += 1000 * solve_us
            ends[0] += solve_us
            found = self._wires[key] = (round(1000 * ends[0]), round(1000 * ends[1]), parts)
        return found

    def _experts_ns(self, most: int, total: int, maximum: RankMaximum | None) -> tuple[int, Float64]:
        """Return the busiest rank's experts in all layers, and the ns by provenance."""
        if maximum is not self._maximum:
            self._maximum = maximum
            self._experts.clear()
        key = self._experts_key(most, total)
        found = self._experts.get(key)
        if found is None:
            us, parts = 0.0, np.zeros(4)
            for group in self._groups:
                cost = group.kernels.experts(np.array([float(most)]), np.array([float(total)]))
                layer_us = float(cost.us[0])
                if maximum is not None:
                    layer_us = self._slowest_us(group, most, total, key[1], maximum)
                us += layer_us * group.times
                parts[int(cost.tags[0])] += 1000 * layer_us * group.times
            found = self._experts[key] = (round(1000 * us), parts)
        return found

    def _slowest_us(
        self, group: GroupLayers, most: int, total: int, low: bool, maximum: RankMaximum
    ) -> float:
        """Return the mean over layers of the busiest rank's time."""
        fullest = np.array([float(most)])

        def cost_us(tokens: Float64) -> Float64:
            return group.kernels.experts(fullest, tokens).us

        counts = group.kernels.counts
        name = f"{id(group.kernels)} {low}"
        return maximum.mean_us(total, cost_us, name, counts.us if counts else None) / maximum.layers

    def _experts_key(self, most: int, total: int) -> tuple[int, bool]:
        """Return what the experts' time depends on: all tokens, and which kernels run."""
        return total, self._groups[0].kernels.share_of_sms(most) == 0.0


class EpGroup:
    """Dispatch, experts and combine over `ep` ranks (see `blocks.plan.GroupKernels`)."""

    def __init__(self, setting: Setting, ffn: MoeFfn, experts: Experts) -> None:
        """`experts` with redundant copies counted."""
        machine, ranks = setting.machine, setting.parallel.ep
        nodes = -(-ranks // setting.gpus_per_node)
        self._all2all = setting.all2all
        self._nodes, self._per_node = nodes, setting.gpus_per_node
        self._tp = setting.parallel.tp
        self._sms = machine.multiprocessors
        row = setting.hidden * BYTES[setting.activation_dtype]
        phases = ("dispatch", "combine")
        if setting.all2all == "nccl":
            exchange = collective(machine, "all-to-all", "all_to_all", ranks, row * experts.topk)
            self._wire = (lambda received, sent: exchange.cost(received),) * 2
        elif setting.all2all == "allgather":
            gather, scatter = _gathering(machine, ranks, row * ranks)
            self._wire = (
                lambda received, sent: gather.cost(sent),
                lambda received, sent: scatter.cost(sent),
            )
        elif setting.all2all == "analytic":
            shape = (setting.hidden, experts.topk, ranks)
            self._wire = tuple(TopologyExchange(machine, phase, *shape).cost for phase in phases)
        else:
            shape = (setting.hidden, max(1, round(experts.topk)), ffn.n_routed_experts, ranks, nodes)
            mode = setting.all2all.removeprefix("deepep_") if "_" in setting.all2all else ""
            self._wire = tuple(ExpertExchange(machine, phase, *shape, mode=mode).cost for phase in phases)
        load = setting.expert_load
        self._small, self._large = (
            RoutedExperts(machine, experts, load, phase) for phase in ("decode", "prefill")
        )
        self.weights = self._small.weights
        self.counts = expert_counts(machine, experts)

    def wire(self, sent: Float64, received: Float64) -> tuple[Cost, Cost]:
        """Return dispatch and combine."""
        sent, received = (np.maximum(tokens / self._tp, 1.0) for tokens in (sent, received))
        dispatch, combine = self._wire
        return dispatch(received, sent), combine(received, sent)

    def experts(self, tokens: Float64, group_tokens: Float64) -> Cost:
        """Return the experts' cost; small steps run the kernels of the low-latency mode."""
        below = np.full(np.shape(group_tokens), self._low_latency(float(np.max(tokens))))
        return self._small.cost(group_tokens).where(below, self._large.cost(group_tokens))

    def ranks_per_port(self, tokens: int) -> int:
        """Return 1: a rank has its own NIC or NVLink; but normal kernels send once per node, and gathered
        tokens reach all."""
        if self._all2all == "allgather":
            return 0
        return 1 if self._low_latency(tokens) or self._nodes == 1 else self._per_node

    def share_of_sms(self, tokens: int) -> float:
        """Return what DeepEP's normal kernels occupy; low-latency ones leave the wire to the NIC."""
        if not self._all2all.startswith("deepep") or self._low_latency(tokens):
            return 0.0
        return NORMAL_SMS / self._sms

    def _low_latency(self, tokens: float) -> bool:
        if self._all2all == "deepep_normal":
            return False
        return self._all2all == "deepep_low_latency" or tokens / self._tp <= LOW_LATENCY_MAX_TOKENS


class GatheredGroup:
    """Every rank computes with the tokens of all: gathered before, summed and scattered after.

    Without attention ranks (dp = 1) all GPUs have all tokens already, and an all-reduce sums the outputs.
    """

    def __init__(self, setting: Setting, experts: Experts) -> None:
        """`experts` split over tp, or over ep."""
        machine, parallel = setting.machine, setting.parallel
        gpus = parallel.tp * parallel.dp
        row = setting.hidden * BYTES[setting.activation_dtype]
        self._before: LinearOp | None = None
        if parallel.dp == 1:
            self._after = all_reduce(machine, "MoE all-reduce", gpus, row)
        else:
            self._before, self._after = _gathering(machine, gpus, row * parallel.dp)
        self._experts = RoutedExperts(machine, experts, setting.expert_load)
        self.weights = self._experts.weights
        self.counts = expert_counts(machine, experts)

    def wire(self, sent: Float64, received: Float64) -> tuple[Cost, Cost]:
        """Return all-gather and reduce-scatter at the fullest rank's tokens, as engines pad them."""
        after = self._after.cost(sent)
        none = Cost(np.zeros_like(after.us), np.zeros_like(after.tags))
        return (none if self._before is None else self._before.cost(sent)), after

    def experts(self, tokens: Float64, group_tokens: Float64) -> Cost:
        """Return the experts' cost for the tokens of all."""
        return self._experts.cost(group_tokens)

    def ranks_per_port(self, tokens: int) -> int:
        """Return 0: every rank receives the tokens of all."""
        return 0

    def share_of_sms(self, tokens: int) -> float:
        """Return 0: nothing overlaps here."""
        return 0.0


def _gathering(machine: Machine, gpus: int, token_bytes: float) -> tuple[LinearOp, LinearOp]:
    """Return what brings the tokens of all ranks to every GPU, and what sums the GPUs' outputs for each rank.

    `token_bytes` is what a token of the fullest rank stands for, with those that it is padded to.
    """
    return (
        collective(machine, "token all-gather", "all_gather", gpus, token_bytes),
        collective(machine, "token reduce-scatter", "reduce_scatter", gpus, token_bytes),
    )
