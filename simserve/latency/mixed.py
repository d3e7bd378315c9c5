"""What unequal contexts add to the steps of a plan: `kernels.tail`, summed over its layers.

While the same sequences decode, their differences stay as they are. So what they add is found anew only when
one joins or leaves, and taken to a level: steps that share one share a page of durations.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from math import log2
from typing import NamedTuple

import numpy as np

from simserve.core import Chunk
from simserve.latency.base import PAGE
from simserve.latency.blocks.plan import AttentionLayers, DecodeKernel
from simserve.latency.kernels.decode import Lengths, WalkTail
from simserve.latency.kernels.mixed import ChunkBeside, call_time
from simserve.latency.overhead import EngineOverhead
from simserve.latency.tables.grid import EXTRAPOLATED, Float64, page_contexts, whole_ns
from simserve.latency.tables.roofline import Cost

# Decoding sequences beside prompt chunks in one attention call: `kernels.beside`, summed over layers.
#
# Where a kernel computes both in one call, decodes cost something else there than alone. Pages of decodes and
# parts of chunks are priced once and remembered.


class _Page(NamedTuple):
    """Decodes of n sequences at PAGE consecutive mean contexts, all layers together."""

    work_ns: array[int]
    longest_ns: array[int]
    least_ns: array[int]
    empty_ns: float
    tags: bytes


class MixedCalls:
    """What decoding sequences add to the prompt chunks of a step."""

    def __init__(self, attention: Sequence[AttentionLayers], walk_ns: float) -> None:
        """`walk_ns`: time of a tile for one key when it is alone (see `uneven`); 0: lengths do not matter."""
        self._attention = attention
        self._walk_ns = walk_ns
        self._measured = any(layers.mixes for layers in attention)
        self._pages: dict[tuple[int, int], _Page] = {}
        self._besides: dict[tuple[int, int, int], ChunkBeside] = {}

    def added_ns(
        self, decodes: int, context: int, chunks: Sequence[Chunk], chunks_ns: int, longest: int
    ) -> tuple[int, int]:
        """Return what `decodes` of a mean context add to chunks that alone take `chunks_ns`, and where that
        comes from; `longest` is the longest of their contexts, 0 if all are as long.
        """
        number, place = divmod(context, PAGE)
        page = self._pages.get((decodes, number)) or self._price_page(decodes, number)
        work_ns, longest_ns, blocks = float(page.work_ns[place]), page.longest_ns[place], 1
        for _, new, cached, _ in chunks:
            key = (len(chunks), new, cached)
            work_us, longest_us, tall = self._besides.get(key) or self._price_chunk(key)
            work_ns += 1000 * work_us
            longest_ns = max(longest_ns, 1000 * longest_us)
            blocks = max(blocks, tall)
        empty_ns = (blocks - 1) * page.empty_ns
        call_ns = call_time(chunks_ns, work_ns, longest_ns, page.least_ns[place], empty_ns)
        tag = page.tags[place]
        if self._measured:
            ratio, tag = self._ratio(decodes, context, chunks)
            call_ns *= ratio
        if longest and self._walk_ns:  # what it exceeds the mean by it walks alone, if no chunk walks as long
            alone_ns = page.longest_ns[place] + self._walk_ns * (longest - context)
            call_ns += max(0.0, alone_ns - longest_ns)
        return round(call_ns) - chunks_ns, tag

    def _ratio(self, sequences: int, context: int, chunks: Sequence[Chunk]) -> tuple[float, int]:
        """Return measured over ruled of all attention in a step (layers not measured count as 1)."""
        weighted, layers, worst = 0.0, 0, 0
        for kind in self._attention:
            ratio, tag = kind.mixes.ratio(sequences, context, chunks) if kind.mixes else (1.0, EXTRAPOLATED)
            weighted, layers, worst = weighted + ratio * kind.times, layers + kind.times, max(worst, tag)
        return weighted / layers, worst

    def _price_page(self, sequences: int, number: int) -> _Page:
        context = page_contexts(number, PAGE)
        work_us, longest_us, least_us = np.zeros(PAGE), np.zeros(PAGE), np.zeros(PAGE)
        empty_us, tags = 0.0, np.zeros(PAGE, np.uint8)
        for layers in self._attention:
            beside = layers.prefill.decode_beside(sequences, context)
            cost = beside.work if beside else layers.decode.cost(sequences, context)
            work_us += cost.us * layers.times
            np.maximum(tags, cost.tags, out=tags)
            if beside:
                longest_us += beside.longest_us * layers.times
                least_us += (beside.launch_us + beside.longest_us) * layers.times
                empty_us += beside.empty_us * layers.times
        work, longest, least = (array("q", whole_ns(us).tobytes()) for us in (work_us, longest_us, least_us))
        made = _Page(work, longest, least, 1000 * empty_us, tags.tobytes())
        self._pages[sequences, number] = made
        return made

    def _price_chunk(self, key: tuple[int, int, int]) -> ChunkBeside:
        parts = [(layers.prefill.chunk_beside(*key), layers.times) for layers in self._attention]
        made = self._besides[key] = ChunkBeside(
            sum(part.work_us * times for part, times in parts),
            sum(part.longest_us * times for part, times in parts),
            max(part.blocks for part, _ in parts),
        )
        return made


def mixed_calls(attention: Sequence[AttentionLayers], walk_ns: float) -> MixedCalls | None:
    """Return the calls of a plan, or None if decodes cost the same beside prompt chunks as alone."""
    mixed = any(layers.mixes or layers.prefill.decode_beside(1, np.ones(1)) for layers in attention)
    return MixedCalls(attention, walk_ns) if mixed else None


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
