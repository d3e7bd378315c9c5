"""How many blocks an LRU prefix cache must hold for each block of a trace to be found: all sizes in one pass.

Follows R. L. Mattson et al., "Evaluation techniques for storage hierarchies", IBM Systems Journal 9(2),
1970: LRU caches of all sizes are the upper parts of one stack, so one pass over the stack serves them all.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from simserve.workload.select import Int64

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
