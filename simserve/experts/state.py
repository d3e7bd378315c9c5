"""Popularity and placement of one expert-parallel group as a run goes on: drift, swaps, rebalances.

Popularity changes at times; placements follow after steps, from the picks of a window of steps, as engines
rebalance (vLLM: every 3,000 steps from the last 1,000; SGLang: every 1,000 forward passes). Between two
changes everything is constant, so the engine may fast-forward.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from simserve.experts.balancing import balanced
from simserve.experts.placement import Float64, Placement, imbalance, moved_slots, shares_of_counts
from simserve.experts.popularity import Recording
from simserve.experts.rank_load import EVEN, RankMaximum, Spreading

# How popularity changes with time: swaps at given times, slow drift, or as a trace recorded it.


@dataclass(frozen=True)
class Change:
    """New pick shares from a time on."""

    at_ns: int
    shares: Float64


class Swaps:
    """Some of each layer's experts exchange their popularity, again and again."""

    def __init__(
        self, shares: Float64, share: float, seed: int, time_ns: Callable[[int], int | None]
    ) -> None:
        """`share` of the experts take part; `time_ns` is when swap 0, 1, ... comes, None after the last."""
        self._first = shares
        self._share = share
        self._seed = seed
        self._time_ns = time_ns
        self._made = 0
        self._shares = shares

    def __call__(self, number: int) -> Change | None:
        """Return change `number`."""
        at_ns = self._time_ns(number)
        if at_ns is None:
            return None
        if number < self._made:
            self._made, self._shares = 0, self._first
        while self._made <= number:
            self._shares = swapped(self._shares, self._share, [self._seed, 0x7377, self._made])
            self._made += 1
        return Change(at_ns, self._shares)


class Replayed:
    """The intervals of a recording after the first."""

    def __init__(self, recording: Recording, topk: float, where: str) -> None:
        """`where` names the trace in messages."""
        self._recording = recording
        self._topk = topk
        self._where = where

    def __call__(self, number: int) -> Change | None:
        """Return change `number`."""
        if number + 1 >= len(self._recording.start_ns):
            return None
        counts = self._recording.counts[number + 1]
        start_ns = int(self._recording.start_ns[number + 1])
        return Change(start_ns, shares_of_counts(counts, self._topk, self._where))


def swapped(shares: Float64, share: float, seed: list[int]) -> Float64:
    """Return shares in which the given part of each row's experts have passed theirs on in a ring."""
    random = np.random.default_rng(seed)
    layers, experts = shares.shape
    count = round(share * experts)
    result = shares.copy()
    for layer in range(layers):
        chosen = random.choice(experts, count, replace=False)
        result[layer, chosen] = shares[layer, np.roll(chosen, 1)]
    return result


@dataclass(frozen=True)
class Rebalancing:
    """When and how placements are made anew."""

    interval_steps: int
    """Steps between two rebalances."""
    window_steps: int
    """Last steps whose picks are counted for it."""
    redundant: int
    groups: int = 1
    nodes: int = 1
    """More than one node and groups that divide over them: hierarchical."""
    skip_above: float = 1.0
    """Leave the placement if mean / max of the counted rank loads exceeds this; 1 = never leave it."""
    expert_bytes: int = 0
    """Weights of one expert in one layer: what a moved copy transfers."""
    bytes_per_s: float = 50e9
    """At which a rank fetches."""
    near: bool = False
    """True: copies spread over nodes, and tokens take the nearest (see `topology`)."""
    blocking: bool = False
    """True: steps wait for the weights; False: they go on with the old placement until all are there."""


@dataclass(frozen=True)
class ExpertPlan:
    """What a run starts with, and how it may change. One plan serves all groups of a pool."""

    shares: Float64
    """float64[layers, experts] at the start."""
    placement: Placement
    changes: Callable[[int], Change | None] = lambda number: None
    """Change number 0, 1, ... of the popularity, in order of time; None after the last."""
    rebalancing: Rebalancing | None = None
    spreading: Spreading = EVEN
    seed: int = 0


class ExpertState:
    """One group's experts as time passes. Asked at step boundaries; times and steps never go back."""

    def __init__(self, plan: ExpertPlan) -> None:
        """Starts at step 0 and time 0."""
        self._plan = plan
        self.shares = plan.shares
        self.placement = plan.placement
        self.epoch = 0
        """Grows with every change."""
        self.rebalances = 0
        self.skipped = 0
        self.moved_bytes = 0
        """All ranks together."""
        self.blocked_ns = 0
        self._change_number = 0
        self._change = plan.changes(0)
        self._seen: list[tuple[int, Float64]] = [(0, plan.shares)]
        """(first step, shares) of the steps so far, as far back as a window can reach."""
        self._rebalance_step = plan.rebalancing.interval_steps if plan.rebalancing else None
        self._coming: tuple[int, Placement] | None = None
        """A placement whose weights are on their way: when they are there, and what it is."""
        self._maximum: RankMaximum | None = None

    @property
    def next_step(self) -> int | None:
        """The step before which something may change, if steps decide that."""
        return self._rebalance_step

    @property
    def next_ns(self) -> int | None:
        """The time at which something changes, if time decides that."""
        times = [change.at_ns for change in (self._change,) if change is not None]
        if self._coming is not None:
            times.append(self._coming[0])
        return min(times, default=None)

    def maximum(self) -> RankMaximum:
        """Return the cost of the slowest rank for the present popularity and placement."""
        if self._maximum is None:
            plan = self._plan
            self._maximum = RankMaximum(self.shares, self.placement, spreading=plan.spreading, seed=plan.seed)
        return self._maximum

    def advance(self, step: int, now_ns: int) -> int:
        """Bring everything up to the boundary before `step` at `now_ns`; return ns that steps must wait."""
        while self._change is not None and self._change.at_ns <= now_ns:
            self.shares = self._change.shares
            self._seen.append((step, self.shares))
            self._change_number += 1
            self._change = self._plan.changes(self._change_number)
            self._turn()
        if self._coming is not None and self._coming[0] <= now_ns:
            self.placement = self._coming[1]
            self._coming = None
            self._turn()
        wait_ns = 0
        while self._rebalance_step is not None and self._rebalance_step <= step:
            wait_ns += self._rebalance(step, now_ns)
        return wait_ns

    def _turn(self) -> None:
        self.epoch += 1
        self._maximum = None

    def _rebalance(self, step: int, now_ns: int) -> int:
        """Make a placement from the picks of the window; return ns that steps wait for its weights."""
        how = self._plan.rebalancing
        assert how is not None
        assert self._rebalance_step is not None
        self._rebalance_step += how.interval_steps
        load = self._observed(step, how.window_steps)
        if 1.0 / float(imbalance(self.placement.rank_load(load)).mean()) > how.skip_above:
            self.skipped += 1
            return 0
        ranks = self.placement.ranks
        placement = balanced(load, ranks, how.redundant, how.groups, how.nodes, how.near)
        moved = moved_slots(self.placement, placement)
        self.rebalances += 1
        self.moved_bytes += int(moved.sum()) * how.expert_bytes
        transfer_ns = round(int(moved.sum(axis=0).max()) * how.expert_bytes * 1e9 / how.bytes_per_s)
        if not how.blocking:
            self._coming = (now_ns + transfer_ns, placement)
            return 0
        self.placement = placement
        self._turn()
        self.blocked_ns += transfer_ns
        return transfer_ns

    def _observed(self, step: int, window: int) -> Float64:
        """Return the mean shares of the last `window` steps before `step`."""
        first = max(0, step - window)
        total, end = np.zeros_like(self.shares), step
        for start, shares in reversed(self._seen):
            steps = end - max(start, first)
            if steps > 0:
                total += steps * shares
            end = min(end, start)
            if start <= first:
                break
        recent = [place for place, (start, _) in enumerate(self._seen) if start <= first]
        self._seen = self._seen[recent[-1] :] if recent else self._seen
        return total / total.sum(axis=1, keepdims=True) * self.shares.sum(axis=1, keepdims=True)
