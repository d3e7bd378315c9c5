"""Prefix hit rate against cache capacity, from a trace alone: an LRU cache, requests one after another.

A block is a hit if it and all blocks before it in the prompt are in the cache; a request is looked up as a
whole, then touches its blocks in order. Leaves out what an engine adds: requests that overlap in time and
hold their blocks, and blocks of outputs. Engines let go of the end of a prompt first; touching in that order
finds at most 0.25 points more of the prompt tokens of Mooncake's public traces, at any of eight capacities.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from simserve.core import Trace
from simserve.errors import TraceError
from simserve.workload.reuse_depth import NEVER, capacity_needed
from simserve.workload.select import Int64, within

WITH_BLOCK_IDS = (
    "mooncake (hash_ids), qwen-bailian (hash_ids), vidur (block_hash_ids), plain (block_ids_<tokens>)"
)
"""Trace formats that can carry block ids, and where."""


@dataclass(frozen=True)
class CachePoint:
    """What a cache of one capacity finds."""

    capacity_blocks: int | None
    """In cache blocks; None: the cache forgets nothing."""
    capacity_tokens: int | None
    hit_tokens: int
    hit_blocks: int
    """Blocks of the trace."""
    token_hit_rate: float
    """Hit tokens over prompt tokens."""
    block_hit_rate: float
    """Hit blocks over blocks of the trace."""


@dataclass(frozen=True)
class CacheCurve:
    """Hit rates of LRU prefix caches of several capacities."""

    cache_block_tokens: int
    """Tokens per block of the cache, the unit of capacities."""
    trace_block_tokens: int
    """Tokens per block id of the trace, the grain of hits."""
    enough_blocks: int
    """The smallest capacity, in cache blocks, that finds as much as a cache without limit."""
    points: tuple[CachePoint, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return nested plain values, ready for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Reuse:
    """What each block of a trace needs to be found, from which every point of the curve follows."""

    cache_block_tokens: int
    trace_block_tokens: int
    prompt_tokens: int
    """Sum over all requests."""
    references: int
    """Blocks of all requests."""
    needed_blocks: Int64
    """int64[m], sorted: capacities from which on one more block each is found (cache blocks)."""
    hit_tokens: Int64
    """int64[m + 1]: tokens found once the first 0 .. m of those blocks are."""

    @property
    def enough_blocks(self) -> int:
        """The smallest capacity that finds all that a cache without limit would; 0 if that is nothing."""
        return int(self.needed_blocks[-1]) if len(self.needed_blocks) else 0

    def curve(self, capacities: Iterable[int | None]) -> CacheCurve:
        """Return the points of these capacities, in cache blocks; None is a cache without limit.

        Raises `TraceError` for a negative capacity.
        """
        points = tuple(self._point(capacity) for capacity in capacities)
        return CacheCurve(self.cache_block_tokens, self.trace_block_tokens, self.enough_blocks, points)

    def round_capacities(self) -> list[int | None]:
        """Return 1, 2, 5 x 10^k from 1,000 (or less, if the curve ends early) until enough; then None."""
        digits = len(str(self.enough_blocks))
        first = min(3, max(0, digits - 2))
        steps = [factor * 10**power for power in range(first, digits + 1) for factor in (1, 2, 5)]
        last = bisect_left(steps, self.enough_blocks)
        return [*steps[: last + 1], None]

    def fine_capacities(self) -> list[int | None]:
        """Return about 200 capacities in equal ratios from 1/1,000 of enough until twice enough: a curve."""
        most = 2 * max(self.enough_blocks, 1)
        return np.unique(np.geomspace(max(1, most / 2000), most, 200).astype(np.int64)).tolist()

    def _point(self, capacity: int | None) -> CachePoint:
        if capacity is not None and capacity < 0:
            raise TraceError(f"a cache cannot hold {capacity} blocks: 0 or more")
        most = NEVER - 1 if capacity is None else capacity
        found = int(np.searchsorted(self.needed_blocks, most, side="right"))
        tokens = int(self.hit_tokens[found])
        return CachePoint(
            capacity_blocks=capacity,
            capacity_tokens=None if capacity is None else capacity * self.cache_block_tokens,
            hit_tokens=tokens,
            hit_blocks=found,
            token_hit_rate=tokens / self.prompt_tokens if self.prompt_tokens else 0.0,
            block_hit_rate=found / self.references if self.references else 0.0,
        )


def cache_curve(
    trace: Trace, capacities: Iterable[int | None], cache_block_tokens: int | None = None
) -> CacheCurve:
    """Return the hit rates of LRU prefix caches of these capacities (see `prefix_reuse`, `Reuse.curve`)."""
    return prefix_reuse(trace, cache_block_tokens).curve(capacities)


def prefix_reuse(trace: Trace, cache_block_tokens: int | None = None) -> Reuse:
    """Return what each block of a trace needs to be found by an LRU prefix cache.

    The cache's blocks are those of the trace, or smaller ones (`cache_block_tokens`, a divisor): an id then
    stands for several blocks, a partial last one for as many as it begins. Rows count in trace order, later
    turns of a session where they would come if answers took no time. Raises `TraceError` if the trace has
    no block ids, or if the sizes do not divide.
    """
    if trace.block_ids is None or trace.block_offsets is None:
        raise TraceError(
            f"{trace.origin.name}: no block ids, so its prefix reuse is unknown; formats that can have them: "
            f"{WITH_BLOCK_IDS}"
        )
    size = trace.block_tokens if cache_block_tokens is None else cache_block_tokens
    if size < 1 or trace.block_tokens % size:
        raise TraceError(
            f"{trace.origin.name}: cache blocks of {size} tokens do not divide the trace's blocks of "
            f"{trace.block_tokens}"
        )
    counts = np.diff(trace.block_offsets)
    row = np.repeat(np.arange(len(counts)), counts)
    left = trace.prompt_tokens[row] - trace.block_tokens * within(counts)
    fill = np.clip(left, 0, trace.block_tokens)
    sizes = -(-np.maximum(fill, 1) // size)
    needed = capacity_needed(trace.block_ids, trace.block_offsets, sizes)
    order = np.argsort(needed, kind="stable")[: int((needed < NEVER).sum())]
    return Reuse(
        cache_block_tokens=size,
        trace_block_tokens=trace.block_tokens,
        prompt_tokens=int(trace.prompt_tokens.sum()),
        references=len(needed),
        needed_blocks=needed[order],
        hit_tokens=np.concatenate(([0], np.cumsum(fill[order], dtype=np.int64))),
    )
