"""Decoding sequences of a model with sliding-window KV groups: who takes and gives back a block, and when.

A member takes a block of each group when its context is a multiple of the block size, and gives one back when
its window passes the end of a block. Either happens once in `block_size` steps, at a residue of its context,
but the order in the free list depends on the order of the members: they are known here, by residue.
"""

from __future__ import annotations

from simserve.core import Request
from simserve.kv import HybridCache, Pool
from simserve.policy.decodes import FOREVER, DecodeGroup

_ROUNDS_AHEAD = 4
"""Blocks per member for which a run is planned ahead."""


class WindowDecodeGroup(DecodeGroup):
    """A `DecodeGroup` whose members hold blocks of a `HybridCache`; a step costs O(members / block size)."""

    __slots__ = ("_fresh", "_members", "_pool")

    def __init__(self, pool: HybridCache) -> None:
        """An empty group at step 0."""
        super().__init__(pool.block_size)
        self._pool = pool
        self._members: list[dict[int, Request]] = [{} for _ in range(pool.block_size)]
        """By id, for each residue as `residues` counts them."""
        self._fresh: dict[int, Request] = {}
        """Members that have not decoded yet: their window may pass any number of blocks at once."""

    def join(self, request: Request) -> None:
        """Add a request (see `DecodeGroup`)."""
        super().join(request)
        self._members[(request.computed - self.step) % self.block_size][request.id] = request
        self._fresh[request.id] = request

    def leave(self, request: Request) -> None:
        """Remove a member (see `DecodeGroup`)."""
        super().leave(request)
        del self._members[(request.computed - self.step) % self.block_size][request.id]
        self._fresh.pop(request.id, None)

    def blocks_next(self) -> int:
        """Return the new blocks that the next step takes before it gives any back."""
        return self._pool.groups * super().blocks_next()

    def take_next(self, pool: Pool, needed: int) -> None:
        """Take the blocks of the next step and give back what windows pass (of the pool it was made for)."""
        self.take_steps(pool, 0, 1)

    def take_steps(self, pool: Pool, done: int, steps: int) -> None:
        """Do the same for the next `steps` steps, the first `done` being done already."""
        hybrid = self._pool
        for ahead in range(done, steps):
            growing = self._growing(ahead)
            touched = growing | self._passing(ahead) | self._fresh
            self._fresh.clear()
            for request in sorted(touched.values(), key=hybrid.rank):
                hybrid.slide(request, self.computed(request) + ahead)
                if request.id in growing:
                    hybrid.take(hybrid.groups)

    def steps_blocked(self) -> int:
        """Return the steps, the next included, after which no block was taken or given back since it."""
        for ahead in range(1, self.block_size):
            if self._growing(ahead) or self._passing(ahead):
                return ahead
        return self.block_size

    def steps_within(self, blocks: int) -> int:
        """Return for how many steps, the next being booked already, `blocks` and what comes back suffice.

        It looks a few rounds ahead: the answer may be too low, never too high.
        """
        if not self.size:
            return FOREVER
        free = blocks - self.blocks_next()
        for ahead in range(1, _ROUNDS_AHEAD * self.block_size):
            takes = self._pool.groups * len(self._growing(ahead))
            if takes > free:
                return ahead
            first_passed = self._pool.window - 1 + self.block_size - ahead
            gives = sum(self.computed(member) >= first_passed for member in self._passing(ahead).values())
            free += gives * len(self._pool.window_groups) - takes
        return _ROUNDS_AHEAD * self.block_size

    def _growing(self, ahead: int) -> dict[int, Request]:
        """Return the members that take blocks in the step after `ahead` more."""
        return self._members[-(self.step + ahead) % self.block_size]

    def _passing(self, ahead: int) -> dict[int, Request]:
        """Return the members whose window passes the end of a block in that step, if they are long enough."""
        return self._members[(self._pool.window - 1 - self.step - ahead) % self.block_size]
