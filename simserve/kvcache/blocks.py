"""A pool of equal KV blocks, counted and not named: what paged attention needs without prefix caching."""

from __future__ import annotations

from simserve.core import Request
from simserve.errors import InvariantError


def blocks_for(tokens: int, block_size: int) -> int:
    """Return the blocks that hold `tokens` tokens of one sequence."""
    return -(-tokens // block_size)


class BlockPool:
    """Free blocks of one replica; `free + used == total` always."""

    __slots__ = ("block_size", "free", "total")
    quoted = False
    """Whether the blocks of decoding requests matter as they fill: here no block is ever found again."""

    def __init__(self, total: int, block_size: int) -> None:
        """`total` usable blocks of `block_size` tokens."""
        self.total = total
        self.block_size = block_size
        self.free = total

    @property
    def used(self) -> int:
        """Blocks held by requests."""
        return self.total - self.free

    def hit(self, request: Request) -> tuple[int, int]:
        """Return the cached blocks of the request, and how many of them nobody holds: none here."""
        return 0, 0

    def admission_need(self, first: int, whole: int, hits: int, idle_hits: int) -> int:
        """Return the free blocks without which a request that would hold `first` tokens stays out.

        `whole` tokens, at least as many, must fit; `hits` blocks of them are cached, of which nobody holds
        `idle_hits`.
        """
        return -(-whole // self.block_size) - hits + idle_hits

    def needed(self, request: Request, computed: int, tokens: int) -> int:
        """Return the blocks that `tokens` more after `computed` need."""
        return blocks_for(computed + tokens, self.block_size) - blocks_for(computed, self.block_size)

    def admit(self, request: Request, hits: int, tokens: int) -> None:
        """Hold what the first `tokens` tokens of a request need."""
        self.take(-(-tokens // self.block_size))

    def extend(self, request: Request, tokens: int) -> None:
        """Hold what `tokens` more prompt tokens of an admitted request need."""
        size = self.block_size
        self.take(blocks_for(request.computed + tokens, size) - blocks_for(request.computed, size))

    def release(self, request: Request, tokens: int) -> None:
        """Give back all blocks of a request whose first `tokens` tokens are computed or scheduled."""
        self.give(-(-tokens // self.block_size))

    def fill(self, request: Request, blocks: int) -> None:
        """The request's first `blocks` blocks are full: nothing comes of it here."""

    def take(self, blocks: int) -> None:
        """Hold `blocks` more; raises InvariantError if they are not free."""
        if blocks > self.free:
            raise InvariantError(f"took {blocks} KV blocks of {self.free} free")
        self.free -= blocks

    def give(self, blocks: int) -> None:
        """Return `blocks`; raises InvariantError if more come back than went out."""
        self.free += blocks
        if self.free > self.total:
            raise InvariantError(f"{self.free} KV blocks free of {self.total}")
