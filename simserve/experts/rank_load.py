"""What the slowest rank costs, as a function of the tokens in a step: sampled once, then looked up.

For one popularity and one placement, the picks of each rank are drawn for a few steps at every half power of
two of tokens (when first needed); between these points the ratio to the cost of even ranks is interpolated.
A rank's kernel depends on its picks only and never gets faster with more: the slowest rank is the busiest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import ceil, floor, log2

import numpy as np

from simserve.experts.balancing import capped, water_filled
from simserve.experts.placement import Float64, Placement, imbalance, sample_counts

CostUs = Callable[[Float64], Float64]
"""Microseconds of one layer's experts on a rank, from the tokens of the whole group (float64[n], 1 or more)
that would give the rank its picks if they were dealt out evenly."""

CountedUs = Callable[[Float64, Float64, Float64], Float64]
"""Microseconds of ranks by picks, experts touched and picks of the busiest expert (arrays of one shape)."""

SAMPLES = 12
"""Steps drawn per point. A step has a draw per layer, and what is wanted is their sum."""


@dataclass(frozen=True)
class Spreading:
    """What happens to a step's picks beyond the placement."""

    per_batch: bool = False
    """Spread the picks of replicated experts anew for each batch (LPLB), instead of evenly."""
    capacity_factor: float | None = None
    """Most picks of an expert over the mean; None: no limit (dropless)."""
    reroute: bool = False
    """Give the overflow to experts with room instead of dropping it."""


EVEN = Spreading()


class RankMaximum:
    """Cost of the slowest rank for one popularity and placement, all MoE layers together."""

    def __init__(
        self,
        shares: Float64,
        placement: Placement,
        *,
        spreading: Spreading = EVEN,
        seed: int = 0,
        samples: int = SAMPLES,
    ) -> None:
        """`shares`: probability that a token picks each expert, float64[layers, experts]."""
        self.shares = shares
        self.placement = placement
        self._spreading = spreading
        self._seed = seed
        self._samples = samples
        self._picks = float(shares[0].sum())
        self._points: dict[int, Float64] = {}
        self._ports: dict[tuple[int, int], Float64] = {}
        self._ratios: dict[tuple[int, str], float] = {}

    @property
    def layers(self) -> int:
        """MoE layers."""
        return len(self.shares)

    @cached_property
    def crossing(self) -> float:
        """Picks that leave their node, over those that would if copies were chosen at random."""
        return self.placement.crossing(self.shares)

    def busiest(self, tokens: int, samples: int, seed: int = 0) -> Float64:
        """Return gamma of `samples` steps of `tokens` tokens, float64[samples, layers].

        With a capacity factor that drops, the picks of the busiest rank over the mean of all picks wished.
        """
        load = self._loads(tokens, samples, seed)
        if self._spreading.capacity_factor is None:
            return imbalance(load)
        return load.max(axis=-1) / (tokens * self._picks / self.placement.ranks)

    def _loads(self, tokens: int, samples: int, seed: int = 0) -> Float64:
        """Return picks per rank of `samples` steps, float64[samples, layers, ranks]."""
        counts = self._counts(tokens, samples, seed)
        if self._spreading.per_batch:
            return water_filled(self.placement, counts)
        return self.placement.rank_load(counts)

    def _counts(self, tokens: int, samples: int, seed: int = 0) -> Float64:
        """Return picks per expert of `samples` steps, float64[samples, layers, experts]."""
        random = np.random.default_rng([self._seed, tokens, seed])
        counts = sample_counts(self.shares, tokens, samples, random)
        factor = self._spreading.capacity_factor
        return counts if factor is None else capped(counts, factor, self._spreading.reroute)

    def mean_us(
        self, tokens: int, cost_us: CostUs, kernels: str = "", counted_us: CountedUs | None = None
    ) -> float:
        """Return the mean cost of a step of `tokens` tokens, interpolated between sampled points.

        `kernels` names the cost functions: what was sampled is kept under it. `counted_us`, where there is
        one, prices each rank by its own picks, instead of as an even rank with as many (not where batches are
        spread anew, of which only the picks per rank are known).
        """
        low, high, weight = _bracket(tokens)
        even = cost_us(np.array([float(tokens)]))[0] * self.layers
        ratio = self._ratio(low, cost_us, kernels, counted_us)
        if weight:
            ratio += weight * (self._ratio(high, cost_us, kernels, counted_us) - ratio)
        return float(even * ratio)

    def gamma(self, tokens: int) -> Float64:
        """Return the mean over steps of max / mean rank load, float64[layers], at a sampled point nearby."""
        low, high, weight = _bracket(tokens)
        return self._gammas(high if weight > 0.5 else low).mean(axis=0)

    def port_gamma(self, tokens: int, together: int) -> float:
        """Return busiest over mean picks of `together` consecutive ranks (those behind one port of the
        network), mean over steps and layers, at a sampled point nearby."""
        low, high, weight = _bracket(tokens)
        key = (high if weight > 0.5 else low, together)
        if key not in self._ports:
            loads = self._loads(key[0], self._samples)
            starts = np.arange(0, self.placement.ranks, together)
            self._ports[key] = imbalance(np.add.reduceat(loads, starts, axis=-1))
        return float(self._ports[key].mean())

    def _gammas(self, point: int) -> Float64:
        found = self._points.get(point)
        if found is None:
            found = self._points[point] = self.busiest(point, self._samples)
        return found

    def _ratio(self, point: int, cost_us: CostUs, kernels: str, counted_us: CountedUs | None) -> float:
        """Return the mean cost of the slowest rank over that of even ranks."""
        key = (point, kernels)
        if key not in self._ratios:
            if counted_us is None or self._spreading.per_batch:
                slowest_us = cost_us(np.maximum(self._gammas(point) * point, 1.0).ravel()).mean()
            else:
                slowest_us = self._counted_us(point, counted_us)
            self._ratios[key] = float(slowest_us / cost_us(np.array([float(point)]))[0])
        return self._ratios[key]

    def _counted_us(self, point: int, counted_us: CountedUs) -> float:
        """Return the mean over steps and layers of the slowest rank, each rank by its own picks."""
        total = 0.0
        for counts in self._counts(point, self._samples):
            picks = counts[:, :, None] * self.placement.split
            ranks = (picks.sum(axis=1), np.minimum(picks, 1.0).sum(axis=1), picks.max(axis=1))
            total += float(counted_us(*ranks).max(axis=-1).mean())
        return total / self._samples


def _bracket(tokens: int) -> tuple[int, int, float]:
    """Return the sampled points around `tokens`, and how far it lies towards the second (0 to 1)."""
    place = 2.0 * log2(max(tokens, 1))
    low, high = (round(2.0 ** (side(place) / 2)) for side in (floor, ceil))
    if low >= high or tokens <= low:
        return low, low, 0.0
    return low, high, (log2(tokens) - log2(low)) / (log2(high) - log2(low))
