"""How many drafted tokens a verification accepts: drawn per request and step, whatever else happens.

A counter-based generator: the draw is a hash of (seed, request, step), so neither the order of events nor
fast-forward nor preemption can change it. Tokens per step: 1 + sum over i of p_1 ... p_i (Leviathan, 2023).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simserve.errors import ScenarioError

Int64 = NDArray[np.int64]
UInt64 = NDArray[np.uint64]


class Acceptance:
    """Tokens that each step of each request yields."""

    def __init__(self, probabilities: tuple[float, ...], seed: int = 0) -> None:
        """`probabilities`: chance that draft j is accepted if all before it were, one per drafted token."""
        if not probabilities or not all(0 <= p <= 1 for p in probabilities):
            found = list(probabilities)
            raise ScenarioError(f"acceptance: {found}, allowed are one or more numbers from 0 to 1")
        self.probabilities = tuple(probabilities)
        self.drafts = len(probabilities)
        self._reached = np.cumprod(np.array(probabilities, np.float64))[::-1]
        """Chance that draft j and all before it are accepted, the last draft first: ascending."""
        self._seed = np.uint64(seed)

    @property
    def mean_tokens(self) -> float:
        """Tokens per step in the mean."""
        return 1.0 + float(self._reached.sum())

    def tokens(self, requests: Int64, steps: Int64) -> Int64:
        """Return the tokens of step number `steps` of each request (int64, broadcast): 1 to 1 + drafts."""
        with np.errstate(over="ignore"):
            key = _mixed(np.asarray(requests, np.uint64) + _mixed(self._seed + np.uint64(0x9E37)))
            level = (_mixed(key + np.asarray(steps, np.uint64)) >> np.uint64(11)) * 2.0**-53
        return 1 + self.drafts - np.searchsorted(self._reached, level, side="right")

    def produced(self, request: int, steps: int) -> Int64:
        """Return the tokens that a request has after 0, 1, ... `steps` steps, int64[steps + 1]."""
        each = self.tokens(np.full(steps, request), np.arange(steps))
        return np.concatenate([[0], np.cumsum(each)])


def _mixed(value: UInt64 | np.uint64) -> UInt64:
    """Return the finaliser of SplitMix64 (Steele, Lea and Flood, 2014)."""
    mixed = np.asarray(value, np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
