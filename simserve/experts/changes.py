"""How popularity changes with time: swaps at given times, slow drift, or as a trace recorded it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from simserve.experts.picks import Float64, shares_of_counts
from simserve.experts.recording import Recording


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
