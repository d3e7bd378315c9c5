"""KV blocks with prefix caching, as vLLM V1 keeps them (0.33.0, and 0.19.0 / 0.15.1 where they differ).

Only full blocks are cached, under a key that stands for their content and all before it. Copies of the same
content are not merged. A block that nobody holds stays hittable in the free list until it is reused: the head
of the list is taken next, and a request's blocks return in reverse, its last block first. 0.33 puts blocks
without a key at the front of the list and those with a key at the back; older versions append all.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

from simserve.core import Request
from simserve.errors import InvariantError
from simserve.kv.pool import blocks_for

NO_KEY = None


class Content(Protocol):
    """What the tokens of requests are, as keys of full blocks."""

    def keys(self, request: Request, blocks: int) -> list[int]:
        """Return the keys of the first `blocks` blocks of the request's prompt and output.

        Equal keys mean that this block and all before it are equal. The list is the caller's to read only.
        """
        ...


class PrefixCache:
    """Blocks of one replica. The interface is that of `BlockPool`, with content."""

    def __init__(self, total: int, block_size: int, content: Content, blanks_first: bool = True) -> None:
        """`total` usable blocks; `blanks_first`: free blocks without a key are reused before all others."""
        self.total = total
        self.block_size = block_size
        self.free = total
        self._content = content
        self._blanks_first = blanks_first
        self._blanks = total
        """Free blocks without content ahead of the queue."""
        self._queue: OrderedDict[int, int | None] = OrderedDict()
        """Free blocks behind them, next to be reused first: block -> key."""
        self._cached: dict[int, list[int]] = {}
        """Blocks (held or free) by key, oldest copy first."""
        self._holders: dict[int, int] = {}
        """Requests that hold each keyed block."""
        self._held: dict[int, list[int]] = {}
        """Keyed blocks of each request, from its first."""
        self._serial = 0

    @property
    def used(self) -> int:
        """Blocks held by requests."""
        return self.total - self.free

    def hit(self, request: Request) -> tuple[int, int]:
        """Return the cached blocks that the request starts with, and how many of them nobody holds.

        At least one token is left to compute.
        """
        most = (request.known - 1) // self.block_size
        cached, holders = self._cached, self._holders
        hits = idle = 0
        for key in self._content.keys(request, most):
            copies = cached.get(key)
            if not copies:
                break
            hits += 1
            idle += not holders[copies[0]]
        return hits, idle

    def admit(self, request: Request, hits: int, tokens: int) -> None:
        """Hold the first `hits` cached blocks and what `tokens` further tokens need."""
        held = [self._cached[key][0] for key in self._content.keys(request, hits)] if hits else []
        for block in held:
            if not self._holders[block]:
                del self._queue[block]
                self.free -= 1
            self._holders[block] += 1
        self._held[request.id] = held
        self._cover(request, hits * self.block_size, tokens)

    def extend(self, request: Request, tokens: int) -> None:
        """Hold what `tokens` more prompt tokens of an admitted request need."""
        self._cover(request, request.computed, tokens)

    def take(self, blocks: int) -> None:
        """Hold `blocks` more for decoding requests, whose content matters only when they leave."""
        if blocks > self.free:
            raise InvariantError(f"took {blocks} KV blocks of {self.free} free")
        self.free -= blocks
        blanks = min(blocks, self._blanks)
        self._blanks -= blanks
        for _ in range(blocks - blanks):
            block, key = self._queue.popitem(last=False)
            if key is not None:
                self._forget(block, key)

    def release(self, request: Request, tokens: int) -> None:
        """Give back all blocks of a request whose first `tokens` tokens are computed or scheduled."""
        size = self.block_size
        held = self._held.pop(request.id)
        self._key_new(request, held, tokens // size)
        total = blocks_for(tokens, size)
        self._free_blanks(total - len(held))
        keys = self._content.keys(request, len(held))
        for index in range(len(held) - 1, -1, -1):
            block = held[index]
            self._holders[block] -= 1
            if not self._holders[block]:
                self._queue[block] = keys[index]
                self.free += 1

    # -- parts -----------------------------------------------------------------------------------------

    def _cover(self, request: Request, computed: int, tokens: int) -> None:
        """Take the blocks for `tokens` after `computed`, and enter those that become full in the cache."""
        size = self.block_size
        self.take(blocks_for(computed + tokens, size) - blocks_for(computed, size))
        self._key_new(request, self._held[request.id], (computed + tokens) // size)

    def _key_new(self, request: Request, held: list[int], full: int) -> None:
        """Give a key to the request's blocks up to the `full`-th."""
        if full <= len(held):
            return
        cached, holders, serial = self._cached, self._holders, self._serial
        for key in self._content.keys(request, full)[len(held) : full]:
            serial += 1
            held.append(serial)
            holders[serial] = 1
            copies = cached.get(key)
            if copies is None:
                cached[key] = [serial]
            else:
                copies.append(serial)
        self._serial = serial

    def _free_blanks(self, blocks: int) -> None:
        self.free += blocks
        if self._blanks_first:
            self._blanks += blocks
            return
        for _ in range(blocks):
            self._serial += 1
            self._queue[self._serial] = NO_KEY

    def _forget(self, block: int, key: int) -> None:
        """A cached block is reused: its content is gone."""
        copies = self._cached[key]
        copies.remove(block)
        if not copies:
            del self._cached[key]
        del self._holders[block]
