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

_FIRST_COPY = 1 << 62
"""Blocks that hold a copy of a cached content are numbered from here; all others by their key."""


class Content(Protocol):
    """What the tokens of requests are, as keys of full blocks."""

    def keys(self, request: Request, blocks: int) -> list[int]:
        """Return the keys of the first `blocks` blocks of the request's prompt and output.

        Equal keys (integers below 2^62) mean that this block and all before it are equal.
        """
        ...

    def forget(self, request: Request) -> None:
        """Drop what was remembered of a request; it may be asked for again."""
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
        self._queue: OrderedDict[int, None] = OrderedDict()
        """Free blocks behind them, next to be reused first."""
        self._holders: dict[int, int] = {}
        """Requests that hold each block with content, the free ones included."""
        self._copies: dict[int, list[int]] = {}
        """Further blocks by key, oldest first, where a content was computed more than once."""
        self._key_of: dict[int, int] = {}
        """Key of each of those."""
        self._held: dict[int, list[int]] = {}
        """Blocks with content of each request, from its first."""
        self._serial = _FIRST_COPY

    @property
    def used(self) -> int:
        """Blocks held by requests."""
        return self.total - self.free

    def hit(self, request: Request) -> tuple[int, int]:
        """Return the cached blocks that the request starts with, and how many of them nobody holds.

        At least one token is left to compute.
        """
        most = (request.known - 1) // self.block_size
        holders, copies = self._holders, self._copies
        hits = idle = 0
        for key in self._content.keys(request, most):
            held_by = holders.get(key)
            if held_by is None:
                if key not in copies:
                    break
                held_by = holders[copies[key][0]]
            hits += 1
            idle += not held_by
        return hits, idle

    def admit(self, request: Request, hits: int, tokens: int) -> None:
        """Hold the first `hits` cached blocks and what `tokens` further tokens need."""
        holders = self._holders
        held = self._content.keys(request, hits)
        if self._copies:
            held = [key if key in holders else self._copies[key][0] for key in held]
        for block in held:
            if not holders[block]:
                del self._queue[block]
                self.free -= 1
            holders[block] += 1
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
        queue, holders = self._queue, self._holders
        for _ in range(blocks - blanks):
            block, _ = queue.popitem(last=False)
            if holders.pop(block, None) is not None and block >= _FIRST_COPY:
                self._forget_copy(block)

    def release(self, request: Request, tokens: int) -> None:
        """Give back all blocks of a request whose first `tokens` tokens are computed or scheduled."""
        size = self.block_size
        held = self._held.pop(request.id)
        self._enter(request, held, tokens // size)
        self._content.forget(request)
        self._free_blanks(blocks_for(tokens, size) - len(held))
        queue, holders, before = self._queue, self._holders, len(self._queue)
        for block in reversed(held):
            left = holders[block] = holders[block] - 1
            if not left:
                queue[block] = None
        self.free += len(queue) - before

    # -- parts -----------------------------------------------------------------------------------------

    def _cover(self, request: Request, computed: int, tokens: int) -> None:
        """Take the blocks for `tokens` after `computed`, and enter those that become full in the cache."""
        size = self.block_size
        self.take(blocks_for(computed + tokens, size) - blocks_for(computed, size))
        self._enter(request, self._held[request.id], (computed + tokens) // size)

    def _enter(self, request: Request, held: list[int], full: int) -> None:
        """Enter the request's blocks up to the `full`-th in the cache."""
        if full <= len(held):
            return
        holders, copies = self._holders, self._copies
        new = self._content.keys(request, full)[len(held) :]
        if holders.keys().isdisjoint(new) and (not copies or copies.keys().isdisjoint(new)):
            holders.update(dict.fromkeys(new, 1))
            held += new
            return
        for key in new:
            block = key
            if key in holders or key in copies:
                self._serial += 1
                block = self._serial
                copies.setdefault(key, []).append(block)
                self._key_of[block] = key
            holders[block] = 1
            held.append(block)

    def _free_blanks(self, blocks: int) -> None:
        self.free += blocks
        if self._blanks_first:
            self._blanks += blocks
            return
        for _ in range(blocks):
            self._serial += 1
            self._queue[self._serial] = None

    def _forget_copy(self, block: int) -> None:
        """A copy is reused: its content may still be in other blocks."""
        key = self._key_of.pop(block)
        copies = self._copies[key]
        copies.remove(block)
        if not copies:
            del self._copies[key]
