"""Where experts lie: each rank holds equally many physical slots per layer, each a copy of one expert.

The picks of an expert are spread evenly over its copies, unless a batch is balanced anew (`balancing`) or
tokens go to the nearest copy (`topology`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from simserve.errors import ScenarioError

# From weights of experts to picks of tokens: the chance that a token picks each, and counts of a step.
#
# A router that samples (or ranks perturbed scores) picks k different experts. With weights w this is the race
# of exponential clocks with rates w: the k first to ring are picked. At the time t at which k are expected to
# have rung, expert e has with probability 1 - exp(-w_e t). Group-limited routing is not modelled.

Float64 = NDArray[np.float64]
_HALVINGS = 60
_NORMAL_FROM = 2048
"""Tokens from which counts are drawn from the normal distribution that the binomial has become."""


def pick_shares(weights: Float64, topk: float) -> Float64:
    """Return the probability that a token picks each expert, float64[layers, experts]; rows sum to `topk`.

    `weights` (float64[layers, experts], none negative) are relative chances of the first pick.
    """
    layers, experts = weights.shape
    if topk >= experts:
        return np.ones((layers, experts))
    if (np.count_nonzero(weights, axis=1) < topk).any():
        raise ScenarioError(f"expert weights: a layer has fewer than {topk:g} experts above zero")
    scaled = weights / weights.sum(axis=1, keepdims=True)
    low, high = np.zeros((layers, 1)), np.full((layers, 1), 1.0)
    while (short := (-np.expm1(-scaled * high)).sum(axis=1, keepdims=True) < topk).any():
        high = np.where(short, high * 2, high)
        if high.max() > 1e12:
            raise ScenarioError(f"expert weights: too uneven to pick {topk:g} experts")
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        short = (-np.expm1(-scaled * middle)).sum(axis=1, keepdims=True) < topk
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    return -np.expm1(-scaled * high)


def shares_of_counts(counts: Float64, topk: float, where: str) -> Float64:
    """Return pick shares from recorded counts, float64[layers, experts].

    Raises `ScenarioError`, naming `where`, if an expert has more picks than there were tokens.
    """
    totals = counts.sum(axis=1, keepdims=True)
    if (counts < 0).any() or (totals <= 0).any():
        raise ScenarioError(f"{where}: counts of every layer must be 0 or more and sum to more than 0")
    shares = counts / totals * topk
    if shares.max() > 1 + 1e-9:
        layer, expert = np.unravel_index(int(shares.argmax()), shares.shape)
        raise ScenarioError(
            f"{where}: layer {layer} gives expert {expert} {shares.max() / topk:.1%} of the picks; a token "
            f"picks each of its {topk:g} experts once, so at most {1 / topk:.1%} is possible"
        )
    return np.minimum(shares, 1.0)


def sample_counts(shares: Float64, tokens: int, samples: int, random: np.random.Generator) -> Float64:
    """Return picks of each expert by `tokens` tokens, float64[samples, layers, experts].

    Every layer of every sample has exactly tokens x (sum of the shares) picks: counts are drawn one by one
    and the rest is spread in proportion to their variances, as conditioning on the sum does.
    """
    shape = (samples, *shares.shape)
    variance = tokens * shares * (1.0 - shares)
    if tokens < _NORMAL_FROM:
        counts = random.binomial(tokens, np.broadcast_to(shares, shape)).astype(np.float64)
    else:
        counts = tokens * shares + np.sqrt(variance) * random.standard_normal(shape)
    whole = variance.sum(axis=-1, keepdims=True)
    part = np.divide(variance, whole, out=np.zeros_like(variance), where=whole > 0)
    excess = counts.sum(axis=-1, keepdims=True) - tokens * shares.sum(axis=-1, keepdims=True)
    counts = np.maximum(counts - excess * part, 0.0)
    wanted = tokens * shares.sum(axis=-1, keepdims=True)
    return counts * (wanted / np.maximum(counts.sum(axis=-1, keepdims=True), 1e-300))


Int64 = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Placement:
    """Copies of experts on ranks."""

    slots: Int64
    """Logical expert of each physical slot, int64[layers, slots]; rank r has the r-th equal part of them."""
    experts: int
    ranks: int
    nodes: int = 1
    """More than one: tokens take a copy on their own node where there is one."""

    @cached_property
    def copies(self) -> Int64:
        """Copies of each expert, int64[layers, experts]."""
        return self.on_ranks.sum(axis=2).astype(np.int64)

    @cached_property
    def on_ranks(self) -> Float64:
        """Copies of each expert on each rank, float64[layers, experts, ranks]."""
        layers, slots = self.slots.shape
        held = np.zeros((layers, self.experts, self.ranks))
        rank = np.repeat(np.arange(self.ranks), slots // self.ranks)
        np.add.at(held, (np.arange(layers)[:, None], self.slots, rank[None, :]), 1.0)
        return held

    @cached_property
    def split(self) -> Float64:
        """Share of an expert's picks that goes to each rank, float64[layers, experts, ranks]."""
        even = self.on_ranks / self.copies[:, :, None]
        if self.nodes == 1:
            return even
        by_node = self.on_ranks.reshape(*self.on_ranks.shape[:2], self.nodes, -1)
        here = by_node.sum(axis=3, keepdims=True)
        near = np.divide(by_node, here, out=np.zeros_like(by_node), where=here > 0).reshape(even.shape)
        return (near + self._nodes_without[:, :, None] * even) / self.nodes

    @cached_property
    def _nodes_without(self) -> Float64:
        """Nodes without a copy of each expert, float64[layers, experts]."""
        by_node = self.on_ranks.reshape(*self.on_ranks.shape[:2], self.nodes, -1).sum(axis=3)
        return (by_node == 0).sum(axis=2).astype(np.float64)

    def crossing(self, shares: Float64) -> float:
        """Return the picks that leave their node, over those that would if copies were chosen at random.

        `shares`: picks per expert, float64[layers, experts]. 1 where the nearest copy is not preferred.
        """
        if self.nodes == 1:
            return 1.0
        return float((shares * self._nodes_without).sum() / shares.sum() / (self.nodes - 1))

    def rank_load(self, load: Float64) -> Float64:
        """Return picks per rank, float64[..., layers, ranks], from picks per expert, [..., experts]."""
        if load.ndim == 2:
            return np.matmul(load[:, None, :], self.split)[:, 0, :]
        return np.moveaxis(np.matmul(np.moveaxis(load, -2, 0), self.split), 0, -2)


def contiguous(layers: int, experts: int, ranks: int, redundant: int = 0) -> Placement:
    """Return experts in order, as engines start: copies beyond the model's own are those of the first."""
    return _placement(np.tile(np.arange(experts + redundant) % experts, (layers, 1)), experts, ranks)


def random_placement(layers: int, experts: int, ranks: int, seed: int, redundant: int = 0) -> Placement:
    """Return `contiguous` with slots shuffled in each layer."""
    random = np.random.default_rng([seed, 0x706C])
    slots = random.permuted(np.tile(np.arange(experts + redundant) % experts, (layers, 1)), axis=1)
    return _placement(slots, experts, ranks)


def _placement(slots: Int64, experts: int, ranks: int) -> Placement:
    check_slots(slots.shape[1], experts, ranks)
    return Placement(slots, experts, ranks)


def check_slots(slots: int, experts: int, ranks: int) -> None:
    """Raise `ScenarioError` unless every rank gets equally many slots."""
    if slots % ranks:
        raise ScenarioError(
            f"{experts} experts and {slots - experts} redundant ones do not spread evenly over {ranks} "
            f"ranks; {-(-slots // ranks) * ranks - experts} redundant ones would"
        )


def imbalance(rank_load: Float64) -> Float64:
    """Return gamma, the load of the busiest rank over the mean: float64[...] from [..., ranks]."""
    mean = rank_load.mean(axis=-1)
    return np.divide(rank_load.max(axis=-1), mean, out=np.ones_like(mean), where=mean > 0)


def moved_slots(before: Placement, after: Placement) -> Int64:
    """Return how many experts each rank must fetch per layer to get from one placement to another.

    int64[layers, ranks]: a copy that the rank holds already (in whatever slot) is not moved.
    """
    fetched = np.maximum(np.minimum(after.on_ranks, 1.0) - np.minimum(before.on_ranks, 1.0), 0.0)
    return fetched.sum(axis=1).astype(np.int64)
