"""Decoding sequences of which it matters who takes, fills and gives back a block, and when.

A member takes a block when its context is a multiple of the block size, fills it `block_size` steps later,
and gives one back when its window passes the end of a block. Each happens once in `block_size` steps, at a
residue of its context, so the members are known here by residue.
"""

from __future__ import annotations

from simserve.core import Request
from simserve.kvcache import HybridCache, Pool

# Sequences that decode together, counted by step instead of by token.
#
# Every member gains one token per step, so its context is what it was on joining plus the steps since. The
# blocks that the next step needs are those of the members whose context is a multiple of the block size, and
# that is a property of (context - step) modulo the block size, which never changes while a member stays: one
# counter per residue answers it for any number of steps ahead.

FOREVER = 1 << 60
"""A number of steps that no run reaches."""
PLENTY = 1024
"""Steps ahead beyond which nobody needs to know exactly: a run is planned no further."""


class DecodeGroup:
    """Members' contexts as a sum and a histogram of residues; every operation is O(1) or O(block size)."""

    __slots__ = ("block_size", "context", "residues", "size", "step")

    def __init__(self, block_size: int) -> None:
        """An empty group at step 0."""
        self.block_size = block_size
        self.size = 0
        self.step = 0
        self.context = 0
        """Sum of computed tokens over the members, as of `step`."""
        self.residues = [0] * block_size

    def join(self, request: Request) -> None:
        """Add a request whose `computed` is true now; sets its `joined_step` and `decoding`."""
        request.joined_step = self.step
        request.decoding = True
        self.size += 1
        self.context += request.computed
        self.residues[(request.computed - self.step) % self.block_size] += 1

    def leave(self, request: Request) -> None:
        """Remove a member and bring its `computed` up to date; clears `decoding`."""
        computed = request.computed + self.step - request.joined_step
        self.size -= 1
        self.context -= computed
        self.residues[(computed - self.step) % self.block_size] -= 1
        request.computed = computed
        request.decoding = False

    def computed(self, request: Request) -> int:
        """Return the member's computed tokens as of now."""
        return request.computed + self.step - request.joined_step

    def advance(self, steps: int) -> None:
        """Let every member gain `steps` tokens."""
        self.step += steps
        self.context += steps * self.size

    def blocks_next(self) -> int:
        """Return the new blocks that the next step needs."""
        return self.residues[-self.step % self.block_size]

    def blocks_within(self, steps: int) -> int:
        """Return the new blocks that the next `steps` steps need together."""
        rounds, rest = divmod(steps, self.block_size)
        if not rest:
            return rounds * self.size
        first = -self.step % self.block_size
        last = first - rest + 1
        residues = self.residues
        if last >= 0:
            return rounds * self.size + sum(residues[last : first + 1])
        return rounds * self.size + sum(residues[: first + 1]) + sum(residues[last:])

    def take_next(self, pool: Pool, needed: int) -> None:
        """Take the `needed` blocks of the next step."""
        if needed:
            pool.take(needed)

    def take_steps(self, pool: Pool, done: int, steps: int) -> None:
        """Take the blocks of the next `steps` steps, those of the first `done` being taken already."""
        taken = self.blocks_next() if done == 1 else self.blocks_within(done)
        pool.take(self.blocks_within(steps) - taken)

    def steps_blocked(self) -> int:
        """Return for how many steps, the next included, whoever does not fit in after it cannot fit in."""
        return FOREVER  # decoding only takes blocks

    def steps_within(self, blocks: int) -> int:
        """Return the most steps whose new blocks are at most `blocks`; beyond PLENTY it may say PLENTY."""
        if not self.size:
            return FOREVER
        if blocks >= self.size * (PLENTY // self.block_size + 1):
            return PLENTY
        rounds, rest = divmod(blocks, self.size)
        steps = rounds * self.block_size
        for ahead in range(self.block_size):
            rest -= self.residues[-(self.step + ahead) % self.block_size]
            if rest < 0:
                break
            steps += 1
        return steps


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
