"""KV blocks with prefix caching, as vLLM V1 keeps them (0.33.0, and 0.19.0 / 0.15.1 where they differ).

Only full blocks are cached, under a key that stands for their content and all before it. Copies of the same
content are not merged. A block that nobody holds stays hittable in the free list until it is reused: the head
of the list is taken next, and a request's blocks return in reverse, its last block first. 0.33 puts blocks
without a key at the front of the list and those with a key at the back; older versions append all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Protocol

from simserve.core import Request
from simserve.errors import InvariantError
from simserve.kvcache.blocks import BlockPool, blocks_for

_FIRST_COPY = 1 << 62
"""Blocks that hold a copy of a cached content are numbered from here; all others by their key."""


_MOST_STALE = 4
"""Entries of the free list per block, past which it is cleaned."""


class Content(Protocol):
    """What the tokens of requests are, as keys of full blocks."""

    quoted: bool
    """True if a prompt may contain an answer which is still being made."""

    def keys(self, request: Request, blocks: int) -> list[int]:
        """Return the keys of the first `blocks` blocks of the request's prompt and output.

        Equal keys (integers below 2^62) mean that this block and all before it are equal.
        """
        ...

    def forget(self, request: Request) -> None:
        """Drop what was remembered of a request; it may be asked for again."""
        ...


def is_quoted(content: Content | None) -> bool:
    """Return True if a prompt may contain an answer still being made: its blocks matter as they fill."""
    return content is not None and content.quoted


class Below(Protocol):
    """What is told of blocks that come and go, by key (see `tiers.TierCache`)."""

    def dropped(self, keys: list[int]) -> None:
        """No block holds these contents any more."""
        ...

    def filled(self, keys: list[int]) -> None:
        """These contents were entered in the cache."""
        ...


class PrefixCache:
    """Blocks of one replica. The interface is that of `BlockPool`, with content."""

    def __init__(self, total: int, block_size: int, content: Content, blanks_first: bool = True) -> None:
        """`total` usable blocks; `blanks_first`: free blocks without a key are reused before all others."""
        self.total = total
        self.block_size = block_size
        self.free = total
        self._content = content
        self.quoted = is_quoted(content)
        """True if the blocks of decoding requests matter as they fill."""
        self._blanks_first = blanks_first
        self._blanks = total
        """Free blocks without content ahead of the queue."""
        self._queue: deque[tuple[list[int], int]] = deque()
        """Free blocks behind them, as they were released: (blocks, stamp), the last of the first next to be
        reused. An entry is stale unless `_holders` says its stamp: the block was taken up since."""
        self._holders: dict[int, int] = {}
        """For each block with content: how many requests hold it, or below 0 the stamp of its release."""
        self._copies: dict[int, list[int]] = {}
        """Further blocks by key, oldest first, where a content was computed more than once."""
        self._key_of: dict[int, int] = {}
        """Key of each of those."""
        self._held: dict[int, list[int]] = {}
        """Blocks with content of each request, from its first."""
        self._serial = _FIRST_COPY
        self._stamp = 0
        self._queued = 0
        """Entries ever put in the queue since it was last cleaned."""
        self.below: Below | None = None
        """Tiers below HBM, if there are any."""

    def take_over(self, pool: BlockPool | PrefixCache, holders: Iterable[int]) -> None:
        """Take over the blocks of a pool that only counted them, held by the requests with these ids.

        Nobody can find what was free there.
        """
        self.free = self._blanks = pool.free
        self._held = {holder: [] for holder in holders}

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
            idle += held_by < 0
        return hits, idle

    def admission_need(self, first: int, whole: int, hits: int, idle_hits: int) -> int:
        """Return the free blocks without which a request that would hold `first` tokens stays out.

        `whole` tokens, at least as many, must fit; `hits` blocks of them are cached, of which nobody holds
        `idle_hits`.
        """
        return blocks_for(whole, self.block_size) - hits + idle_hits

    def needed(self, request: Request, computed: int, tokens: int) -> int:
        """Return the blocks that `tokens` more after `computed` need."""
        return blocks_for(computed + tokens, self.block_size) - blocks_for(computed, self.block_size)

    @property
    def blanks(self) -> int:
        """Blocks that can be taken before any content is dropped."""
        return self._blanks

    def admit(self, request: Request, hits: int, tokens: int) -> None:
        """Hold the first `hits` cached blocks and what `tokens` further tokens need."""
        self._hold_hits(request, hits)
        self._cover(request, hits * self.block_size, tokens)

    def hold(self, request: Request, hits: int, blocks: int) -> None:
        """Hold the first `hits` cached blocks and `blocks` more, whose content is on its way."""
        self._hold_hits(request, hits)
        self.take(blocks)

    def fill(self, request: Request, blocks: int) -> None:
        """Enter the request's blocks up to number `blocks` in the cache: their content is there."""
        self._enter(request, self._held[request.id], blocks)

    def _hold_hits(self, request: Request, hits: int) -> None:
        holders = self._holders
        held = self._content.keys(request, hits)
        if self._copies:
            held = [key if key in holders else self._copies[key][0] for key in held]
        for block in held:
            if holders[block] < 0:
                holders[block] = 1
                self.free -= 1
            else:
                holders[block] += 1
        self._held[request.id] = held

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
        if blocks > blanks:
            self._reuse(blocks - blanks)

    def give(self, blocks: int) -> None:
        """Return `blocks` that hold no content."""
        self._free_blanks(blocks)

    def release(self, request: Request, tokens: int) -> None:
        """Give back all blocks of a request whose first `tokens` tokens are computed or scheduled."""
        size = self.block_size
        held = self._held.pop(request.id)
        self._enter(request, held, tokens // size)
        self._content.forget(request)
        self._free_blanks(blocks_for(tokens, size) - len(held))
        self._stamp -= 1
        holders, stamp = self._holders, self._stamp
        for block in held:
            held_by = holders[block]
            if held_by == 1:
                holders[block] = stamp
                self.free += 1
            else:
                holders[block] = held_by - 1
        self._append(held, stamp)

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
        if self.below is not None:
            self.below.filled(new)
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
        if blocks:
            self._stamp -= 1
            blanks = range(self._serial + 1, self._serial + 1 + blocks)
            self._serial += blocks
            self._holders.update(dict.fromkeys(blanks, self._stamp))
            self._append(list(blanks), self._stamp)

    def _append(self, released: list[int], stamp: int) -> None:
        """Put blocks at the end of the free list; drop stale entries when they outnumber the blocks."""
        self._queue.append((released, stamp))
        self._queued += len(released)
        if self._queued > _MOST_STALE * self.total:
            holders = self._holders
            fresh = (([b for b in blocks if holders.get(b) == then], then) for blocks, then in self._queue)
            self._queue = deque(entry for entry in fresh if entry[0])
            self._queued = sum(len(blocks) for blocks, _ in self._queue)

    def _reuse(self, blocks: int) -> None:
        """Take free blocks from the head of the queue, and their content out of the cache."""
        queue, holders = self._queue, self._holders
        reused: list[int] = []
        while blocks:
            released, stamp = queue[0]
            while released and blocks:
                block = released.pop()
                if holders.get(block) == stamp:
                    del holders[block]
                    blocks -= 1
                    reused.append(block)
            if not released:
                queue.popleft()
        if self._key_of or self.below is not None:
            self._forget(reused)

    def _forget(self, reused: list[int]) -> None:
        """Take reused copies off the books; tell the tiers below which contents are gone."""
        key_of = self._key_of
        keys = [self._forget_copy(block) if block in key_of else block for block in reused]
        if self.below is not None:
            holders, copies = self._holders, self._copies
            gone = [key for key in keys if key < _FIRST_COPY and key not in holders and key not in copies]
            self.below.dropped(gone)

    def _forget_copy(self, block: int) -> int:
        """A copy is reused: its content, whose key is returned, may still be in other blocks."""
        key = self._key_of.pop(block)
        copies = self._copies[key]
        copies.remove(block)
        if not copies:
            del self._copies[key]
        return key
