"""What unequal contexts add to the steps of a plan: `kernels.tail`, summed over its layers.

While the same sequences decode, their differences stay as they are. So what they add is found anew only when
one joins or leaves, and taken to a level: steps that share one share a page of durations.
"""

from __future__ import annotations

from math import log2
from typing import NamedTuple

import numpy as np

from simserve.latency.blocks.plan import DecodeKernel
from simserve.latency.costs import Cost
from simserve.latency.grid import EXTRAPOLATED, Float64
from simserve.latency.kernels.tail import Lengths, WalkTail
from simserve.latency.overhead import EngineOverhead

LEVELS = 12
"""Levels per doubling of what is added (6 % apart: 0.1 % of a step where it is a twentieth)."""


class Layers(NamedTuple):
    """Layers of one kind."""

    tail: WalkTail
    times: int


class UnevenDecodes:
    """What the lengths of decoding sequences add to attention, beyond their sum."""

    def __init__(self, layers: list[Layers], padded: list[int]) -> None:
        """`padded`: captured size that runs so many sequences; more are computed outside graphs."""
        self._layers = layers
        self._padded = padded
        self.kept = max(tail.kept for tail, _ in layers)
        """Longest contexts that must be known."""
        self.walk_ns = 1000 * sum(tail.key_us * times for tail, times in layers)
        """Time that a tile takes for one key when it is alone, all layers together."""

    def level_ns(self, lengths: Lengths) -> int:
        """Return what a step takes longer than with as many sequences of their mean context, as a level."""
        count = lengths.sequences
        parts = [(tail, times, self._part(tail, count)) for tail, times in self._layers]
        return _level(1000 * sum(times * tail.extra_us(lengths, part) for tail, times, part in parts if part))

    def decode_cost(self, tail: WalkTail, kernel: DecodeKernel, sequences: int, contexts: Float64) -> Cost:
        """Return one layer's attention of equal contexts (float64[n]).

        Where a measured call splits its contexts and the captured one does not, by rule; up to the first
        measured number of sequences that is not split, measured / ruled goes from 1 to what it is there.
        """
        part = self._part(tail, sequences)
        split = [count for count in tail.measured if tail.is_split(count)]
        whole = [count for count in tail.measured if not tail.is_split(count)]
        if not part or not split or (whole and sequences >= whole[0]):
            return kernel.cost(sequences, contexts)
        us = tail.equal_us(sequences, contexts, part)
        if whole and sequences > split[-1]:
            near = log2(sequences / split[-1]) / log2(whole[0] / split[-1])
            ratio = kernel.cost(whole[0], contexts).us / tail.equal_us(whole[0], contexts, part)
            us = us * ratio**near
        return Cost(us, np.full(len(contexts), EXTRAPOLATED, np.uint8))

    def _part(self, tail: WalkTail, sequences: int) -> int:
        """Return the keys of one part of a context; 0: the call is split by its own contexts."""
        if sequences < len(self._padded):
            return tail.part_keys(self._padded[sequences])
        return 0 if tail.is_split(sequences) else tail.longest


def padded_sizes(overhead: EngineOverhead) -> list[int]:
    """Return the captured size that runs 0, 1, 2, ... tokens, up to the largest one."""
    return [overhead.padded(tokens) for tokens in range((overhead.capture_sizes or (0,))[-1] + 1)]


def _level(ns: float) -> int:
    """Return the level nearest to so many ns."""
    if abs(ns) < 1.0:
        return 0
    size = 2.0 ** (round(LEVELS * log2(abs(ns))) / LEVELS)
    return round(size if ns > 0 else -size)
