"""Decoding sequences of which it matters who takes, fills and gives back a block, and when.

A member takes a block when its context is a multiple of the block size, fills it `block_size` steps later,
and gives one back when its window passes the end of a block. Each happens once in `block_size` steps, at a
residue of its context, so the members are known here by residue.
"""

from __future__ import annotations

from simserve.core import Request
from simserve.kv import HybridCache, Pool
from simserve.policy.decodes import FOREVER, DecodeGroup

_ROUNDS_AHEAD = 4
"""Blocks per member for which a run is planned ahead."""


class MemberDecodeGroup(DecodeGroup):
    """A `DecodeGroup` that knows its members, and enters in the prefix cache each block that one fills.

    As in vLLM, in the step whose scheduling computes the block's last token, as far as tokens are known then:
    with asynchronous scheduling the newest is not, and the block enters a step later.
    """

    __slots__ = ("_lag", "_members")

    def __init__(self, block_size: int, lags: bool = False) -> None:
        """An empty group at step 0; `lags`: the scheduler plans ahead."""
        super().__init__(block_size)
        self._members: list[dict[int, Request]] = [{} for _ in range(block_size)]
        """By id, for each residue as `residues` counts them."""
        self._lag = int(lags)

    def join(self, request: Request) -> None:
        """Add a request (see `DecodeGroup`)."""
        super().join(request)
        self._members[(request.computed - self.step) % self.block_size][request.id] = request

    def leave(self, request: Request) -> None:
        """Remove a member (see `DecodeGroup`)."""
        super().leave(request)
        del self._members[(request.computed - self.step) % self.block_size][request.id]

    def take_next(self, pool: Pool, needed: int) -> None:
        """Take the `needed` blocks of the next step; enter those that it fills in the cache."""
        super().take_next(pool, needed)
        self._fill(pool, 0, 1)

    def take_steps(self, pool: Pool, done: int, steps: int) -> None:
        """Do the same for the next `steps` steps, the first `done` being done already."""
        super().take_steps(pool, done, steps)
        self._fill(pool, done, steps)

    def full_blocks(self, request: Request, ahead: int = 0) -> int:
        """Return the full blocks of known tokens once the step after `ahead` more is scheduled."""
        return (self.computed(request) + ahead + 1 - self._lag) // self.block_size

    def steps_blocked(self) -> int:
        """Return the steps, the next included, after which no block was filled since it."""
        return next((ahead for ahead in range(1, self.block_size) if self._filling(ahead)), self.block_size)

    def _fill(self, pool: Pool, done: int, steps: int) -> None:
        for ahead in range(done, steps):
            for request in self._filling(ahead).values():
                pool.fill(request, self.full_blocks(request, ahead))

    def _growing(self, ahead: int) -> dict[int, Request]:
        """Return the members that take blocks in the step after `ahead` more."""
        return self._members[-(self.step + ahead) % self.block_size]

    def _filling(self, ahead: int) -> dict[int, Request]:
        """Return the members whose last known token then fills a block."""
        return self._members[(self._lag - 1 - self.step - ahead) % self.block_size]


class WindowDecodeGroup(MemberDecodeGroup):
    """A `DecodeGroup` whose members hold blocks of a `HybridCache`; a step costs O(members / block size)."""

    __slots__ = ("_fresh", "_pool")

    def __init__(self, pool: HybridCache, lags: bool = False) -> None:
        """An empty group at step 0; `lags`: the scheduler plans ahead."""
        super().__init__(pool.block_size, lags)
        self._pool = pool
        self._fresh: dict[int, Request] = {}
        """Members that have not decoded yet: their window may pass any number of blocks at once."""

    def join(self, request: Request) -> None:
        """Add a request (see `DecodeGroup`)."""
        super().join(request)
        self._fresh[request.id] = request

    def leave(self, request: Request) -> None:
        """Remove a member (see `DecodeGroup`)."""
        super().leave(request)
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
            if hybrid.quoted:
                self._fill(hybrid, ahead, ahead + 1)

    def steps_blocked(self) -> int:
        """Return the steps, the next included, after which no block was taken, filled or given back since."""
        quoted = self._pool.quoted
        for ahead in range(1, self.block_size):
            if self._growing(ahead) or self._passing(ahead) or (quoted and self._filling(ahead)):
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

    def _passing(self, ahead: int) -> dict[int, Request]:
        """Return the members whose window passes the end of a block in that step, if they are long enough."""
        return self._members[(self._pool.window - 1 - self.step - ahead) % self.block_size]
