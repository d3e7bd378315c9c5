"""Costs as arrays: microseconds, and where each came from."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simserve.latency.grid import ANALYTIC, Float64, Tags


class Cost(NamedTuple):
    """Times of one kernel over an array of sizes."""

    us: Float64
    tags: Tags

    def where(self, condition: NDArray[np.bool_], other: Cost) -> Cost:
        """Return this cost where `condition` (bool[n]) holds, else the other."""
        return Cost(np.where(condition, self.us, other.us), np.where(condition, self.tags, other.tags))


class Weights(NamedTuple):
    """The weights that a kernel multiplies with, on one GPU."""

    params: float
    dtype: str


class LinearOp(NamedTuple):
    """A kernel whose time depends on a count only (tokens of the step, or sequences)."""

    name: str
    cost: Callable[[Float64], Cost]
    """From the counts (float64[n], each at least 1) to their cost."""
    times: int = 1
    """How often a layer, or the step, runs it."""
    weights: Weights | None = None
    """What it multiplies with each time; None: it only moves data."""


def analytic(us: Float64) -> Cost:
    """Return a cost that comes from no measurement."""
    return Cost(us, np.full(np.shape(us), ANALYTIC, np.uint8))


def by_provenance(costs: list[tuple[Cost, int]], size: int) -> Float64:
    """Return microseconds by provenance, float64[4, size], of costs each run a number of times."""
    total = np.zeros((4, size))
    for cost, times in costs:
        for tag in np.unique(cost.tags):
            total[tag] += np.where(cost.tags == tag, cost.us * times, 0.0)
    return total
