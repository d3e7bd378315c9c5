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
from itertools import pairwise
from typing import Any

import numpy as np

from simserve.core import Trace
from simserve.errors import TraceError
from simserve.workload.blocks import Int64, within

# How many blocks an LRU prefix cache must hold for each block of a trace to be found: all sizes in one pass.
#
# Follows R. L. Mattson et al., "Evaluation techniques for storage hierarchies", IBM Systems Journal 9(2),
# 1970: LRU caches of all sizes are the upper parts of one stack, so one pass over the stack serves them all.

NEVER = np.iinfo(np.int64).max
"""Capacity needed by a block that no cache holds: it, or one before it in its prompt, is new."""


def capacity_needed(ids: Int64, offsets: Int64, sizes: Int64) -> Int64:
    """Return int64[len(ids)]: the smallest LRU capacity at which each block is part of a prefix hit.

    `ids` are the blocks of all requests one after another, request i owns ids[offsets[i]:offsets[i + 1]];
    `sizes` are what each takes in the cache, in the unit of the capacity. `NEVER` where no capacity will do.

    Why one pass is exact: a request looks all its blocks up before it touches any, so it meets the state
    that the touches of earlier requests left. Whenever eviction happens, an LRU cache of capacity C then
    holds a block just if the block and all that were touched after it take at most C: that sum is its depth.
    A block is a hit if it and all before it in the prompt are held, that is if the greatest depth up to it
    is at most C.

    A block of size w stands as well for w blocks of size 1 that are touched in order: the first of them is
    the deepest, at the depth of the whole, so all or none of them are part of a prefix hit.
    """
    needed = np.full(len(ids), NEVER, dtype=np.int64)
    blocks, weights = ids.tolist(), sizes.tolist()
    stack = _Stack(weights)
    last = [-1] * (int(ids.max(initial=-1)) + 1)
    for start, end in pairwise(offsets.tolist()):
        reach = 0
        for place in range(start, end):
            touched = last[blocks[place]]
            if touched < 0:
                break
            reach = max(reach, stack.depth(touched))
            needed[place] = reach
        for place in range(start, end):
            stack.touch(place, last[blocks[place]])
            last[blocks[place]] = place
    return needed


class _Stack:
    """The LRU stack as a Fenwick tree over the touches: a block counts at its latest one."""

    def __init__(self, weights: list[int]) -> None:
        self._weights = weights
        self._tree = [0] * (len(weights) + 1)
        self._total = 0

    def depth(self, touch: int) -> int:
        """Return the size of all blocks that were last touched at `touch` or later."""
        tree, earlier = self._tree, 0
        while touch:
            earlier += tree[touch]
            touch &= touch - 1
        return self._total - earlier

    def touch(self, touch: int, before: int) -> None:
        """Put the block of `touch` on top; it was last touched at `before` (-1: it is new)."""
        self._add(touch, self._weights[touch])
        if before >= 0:
            self._add(before, -self._weights[before])

    def _add(self, touch: int, size: int) -> None:
        tree, place = self._tree, touch + 1
        while place < len(tree):
            tree[place] += size
            place += place & -place
        self._total += size


# How much of a trace's prompts an unbounded prefix cache would find: the ceiling for any real one.
#
# Requests in trace order; a block is a hit if an earlier request had it and all blocks before it in the
# same prompt were hits; all blocks of a request become known at once.


@dataclass(frozen=True)
class PrefixStats:
    """Reuse of prompt content with a cache that forgets nothing."""

    block_tokens: int
    distinct_blocks: int
    referenced_blocks: int
    token_hit_rate: float
    """Hit tokens over prompt tokens."""
    block_hit_rate: float
    """Hit blocks over referenced blocks."""
    requests_with_hit: int
    requests_fully_hit: int
    """Requests all of whose blocks are known (an engine still computes at least one token)."""


def hit_blocks(trace: Trace) -> Int64:
    """Return int64[n]: leading blocks of each request that earlier requests had; 0 without block ids."""
    if trace.block_ids is None or trace.block_offsets is None:
        return np.zeros(len(trace), dtype=np.int64)
    counts = np.diff(trace.block_offsets)
    row = np.repeat(np.arange(len(counts)), counts)
    first_row = np.empty(int(trace.block_ids.max(initial=-1)) + 1, dtype=np.int64)
    first_row[trace.block_ids[::-1]] = row[::-1]
    missed = first_row[trace.block_ids] == row
    run = np.where(missed, within(counts), np.repeat(counts, counts))
    hits = np.zeros(len(counts), dtype=np.int64)
    filled = counts > 0
    if filled.any():
        hits[filled] = np.minimum.reduceat(run, trace.block_offsets[:-1][filled])
    return hits


def prefix_stats(trace: Trace) -> PrefixStats | None:
    """Return the reuse of a trace, or None if it has no block ids."""
    if trace.block_ids is None or trace.block_offsets is None:
        return None
    hits = hit_blocks(trace)
    tokens = np.minimum(hits * trace.block_tokens, trace.prompt_tokens)
    counts = np.diff(trace.block_offsets)
    return PrefixStats(
        block_tokens=trace.block_tokens,
        distinct_blocks=int(np.count_nonzero(np.bincount(trace.block_ids))),
        referenced_blocks=len(trace.block_ids),
        token_hit_rate=_share(int(tokens.sum()), int(trace.prompt_tokens.sum())),
        block_hit_rate=_share(int(hits.sum()), int(counts.sum())),
        requests_with_hit=int((hits > 0).sum()),
        requests_fully_hit=int(((hits == counts) & (counts > 0)).sum()),
    )


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


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
