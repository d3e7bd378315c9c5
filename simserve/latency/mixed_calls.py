"""Decoding sequences beside prompt chunks in one attention call: `kernels.beside`, summed over layers.

Where a kernel computes both in one call, decodes cost something else there than alone. Pages of decodes and
parts of chunks are priced once and remembered.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simserve.core import Chunk
from simserve.latency.base import PAGE
from simserve.latency.blocks.plan import AttentionLayers
from simserve.latency.grid import EXTRAPOLATED, page_contexts, whole_ns
from simserve.latency.kernels.beside import ChunkBeside, call_time


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
