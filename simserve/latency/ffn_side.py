"""The FFN GPUs of a deployment whose attention runs elsewhere: experts, dense MLPs, and the hop to them.

Routed experts lie whole on the FFN GPUs; shared experts and dense MLPs have a copy on each, which computes
its part of the tokens. Times are those of one microbatch of all attention ranks together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from simserve.experts.rank_load import RankMaximum
from simserve.latency.blocks.plan import Setting
from simserve.latency.kernels.exchange import LOW_LATENCY_MAX_TOKENS
from simserve.latency.kernels.expert_rows import Experts
from simserve.latency.kernels.experts import RoutedExperts
from simserve.latency.overlap import LayerTimes, Ns, Parts
from simserve.latency.tables.grid import ANALYTIC, Float64
from simserve.latency.tables.roofline import Cost, CountedTimes, LinearOp

HopCost = Callable[[Float64, Float64], Cost]
"""From the fullest rank's tokens, and those of all that the busiest FFN GPU stands for, to one direction."""


class RemoteLayers(NamedTuple):
    """`times` layers with the same FFN."""

    out: HopCost
    back: HopCost
    local: list[LinearOp]
    """Kernels by the tokens of one FFN GPU: dense MLP, or shared expert."""
    routed: RemoteExperts | None
    """None: a dense layer."""
    times: int


class RemoteExperts:
    """Routed experts on the FFN GPUs, by the tokens of all."""

    def __init__(self, setting: Setting, experts: Experts) -> None:
        """`setting` is that of the FFN GPUs."""
        self._gpus = setting.parallel.ep
        self._small, self._large = (
            RoutedExperts(setting.machine, experts, setting.expert_load, phase)
            for phase in ("decode", "prefill")
        )

    def cost(self, tokens: Float64, total: int) -> Cost:
        """Return the cost on a GPU that gets its even part of `tokens` (float64[n]).

        `total` tokens really arrive; where they are few per GPU, the kernels are those of small steps.
        """
        small = np.full(np.shape(tokens), total / self._gpus <= LOW_LATENCY_MAX_TOKENS)
        return self._small.cost(tokens).where(small, self._large.cost(tokens))


class FfnSide:
    """What the FFN GPUs and the network do in a step (see `moe_layers.MoeLayers`, whose place it takes)."""

    def __init__(self, layers: list[RemoteLayers], gpus: int, solve_us: float = 0.0) -> None:
        """`layers` in the model's order; `solve_us` comes before the experts of each MoE layer."""
        self.layers = sum(kind.times for kind in layers)
        self._kinds = layers
        self._gpus = gpus
        self._solve_ns = 1000 * solve_us
        self._local = [CountedTimes(kind.local, 1024) for kind in layers]
        self._known: dict[tuple[int, int], tuple[tuple[LayerTimes, ...], Float64]] = {}
        self._maximum: RankMaximum | None = None

    def parts(
        self, local_ns: Ns, most: int, total: int, maximum: RankMaximum | None, shared_apart: bool
    ) -> Parts:
        """Return the parts of steps of one microbatch: `most` tokens on the fullest rank, `total` on all.

        `local_ns` (int64[k]) is what the slowest attention rank computes; `maximum` knows the busiest FFN
        GPU.
        """
        if maximum is not self._maximum:
            self._maximum = maximum
            self._known.clear()
        kinds, _ = self._times(most, total)
        sums = [round(sum(kind.times * kind[part] for kind in kinds)) for part in (1, 2, 3)]
        out_ns, ffn_ns, back_ns = sums
        return Parts(local_ns, 0, out_ns, ffn_ns, back_ns, self.layers, by_layer=kinds)

    def provenance_ns(self, most: int, total: int, shared_ns: int) -> Float64:
        """Return ns by `PROVENANCE` of network and FFN side in the parts asked for last, float64[4]."""
        return self._times(most, total)[1]

    def _times(self, most: int, total: int) -> tuple[tuple[LayerTimes, ...], Float64]:
        key = (most, total)
        if key not in self._known:
            by_tag = np.zeros(4)
            kinds = [self._kind(number, most, total, by_tag) for number in range(len(self._kinds))]
            self._known[key] = tuple(kinds), by_tag
        return self._known[key]

    def _kind(self, number: int, most: int, total: int, by_tag: Float64) -> LayerTimes:
        """Return the times of one kind of layers, and add them to `by_tag` (ns by provenance)."""
        kind = self._kinds[number]
        own = -(-total // self._gpus)
        local_ns = self._local[number].at(own)
        by_tag += kind.times * self._local[number].parts_ns(own)
        received, routed_ns = float(total), 0.0
        if kind.routed is not None:
            cost = kind.routed.cost(np.array([float(total)]), total)
            routed_ns = 1000 * float(cost.us[0])
            if self._maximum is not None:
                routed_ns = 1000 * self._busiest_us(kind.routed, total)
                received *= self._maximum.port_gamma(total, 1)
            by_tag[int(cost.tags[0])] += kind.times * routed_ns
            by_tag[ANALYTIC] += kind.times * self._solve_ns
            routed_ns += self._solve_ns
        ends = []
        for hop in (kind.out, kind.back):
            cost = hop(np.array([float(most)]), np.array([received]))
            ends.append(1000 * float(cost.us[0]))
            by_tag[int(cost.tags[0])] += kind.times * ends[-1]
        return LayerTimes(kind.times, ends[0], local_ns + routed_ns, ends[1])

    def _busiest_us(self, routed: RemoteExperts, total: int) -> float:
        """Return the mean over layers of the busiest FFN GPU's time."""
        maximum = self._maximum
        assert maximum is not None

        def cost_us(tokens: Float64) -> Float64:
            return routed.cost(tokens, total).us

        return maximum.mean_us(total, cost_us, f"{id(routed)}") / maximum.layers
