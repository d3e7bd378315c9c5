"""Sequences that decode together, counted by step instead of by token.

Every member gains one token per step, so its context is what it was on joining plus the steps since. The
blocks that the next step needs are those of the members whose context is a multiple of the block size, and
that is a property of (context - step) modulo the block size, which never changes while a member stays: one
counter per residue answers it for any number of steps ahead.
"""

from __future__ import annotations

from simserve.core import Request
from simserve.kv import Pool

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
