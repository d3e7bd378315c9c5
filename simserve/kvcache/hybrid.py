"""KV blocks of a model with full and sliding-window attention layers, as vLLM's hybrid KV cache keeps them.

Groups of layers, some full and some with a window, take equal blocks from one free list: a request holds
one of each for every `block_size` tokens, but window groups give a block back as soon as the window has
passed it, while the request goes on. Follows vLLM 0.33.0, 0.19.0 and 0.15.1; all windows have one size.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from simserve.core import Request
from simserve.errors import InvariantError
from simserve.kvcache.blocks import blocks_for
from simserve.kvcache.prefix import Content, is_quoted

_PASSED = 0
"""Stands in a request's list for a block that its window passed before it held it."""


@dataclass(slots=True)
class _Held:
    """Blocks of one request that have a name: its full ones as of its last chunk or slide."""

    rank: int
    """Place in the order of admission."""
    blocks: list[list[int]]
    """By group, from the request's first."""
    passed: int
    """Blocks that the window has passed."""
    fork: int
    """Blocks of the beginning that full groups had cached and window groups had not; 0 if none."""


class HybridCache:
    """Blocks of one replica. The interface is that of `PrefixCache`, and windows slide."""

    def __init__(
        self,
        total: int,
        block_size: int,
        windows: Sequence[int],
        content: Content | None,
        blanks_first: bool = True,
        window_limit: int | None = None,
        retention_tokens: int | None = None,
    ) -> None:
        """`total` usable blocks, shared by groups of these windows: the tokens that a token sees; 0: all.

        Without `content` nothing is cached. `window_limit`: blocks of a window group, at most, that the
        check for whole sequences counts. `blanks_first`: as in `PrefixCache`. `retention_tokens`: None caches
        every full block of a window group; 0 only those that a prompt, or where prompts part, ends with; a
        number of tokens also those that each such stretch ends with.
        """
        self.total = total
        self.block_size = block_size
        self.groups = len(windows)
        self.window = max(windows)
        self.window_groups = [index for index, window in enumerate(windows) if window]
        self._full_groups = [index for index, window in enumerate(windows) if not window]
        self._retention = None if retention_tokens is None else retention_tokens // block_size
        self._content = content
        self.quoted = is_quoted(content)
        """True if the blocks of decoding requests matter as they fill."""
        self._blanks_first = blanks_first or content is None
        self._window_limit = window_limit
        self._visible = blocks_for(self.window - 1, block_size)
        """Blocks of a window group that a cached prefix must end with."""
        self._blanks = total
        """Free blocks without a name, ahead of the queue."""
        self._queue: OrderedDict[int, None] = OrderedDict()
        """Free blocks behind them; the first is reused next."""
        self._holders: dict[int, int] = {}
        """How many requests hold each named block; 0 if it is free."""
        self._tag_of: dict[int, tuple[int, int]] = {}
        """Group and key of each block with content."""
        self._cached: dict[tuple[int, int], dict[int, None]] = {}
        """Blocks by group and key, oldest first: copies are not merged."""
        self._held: dict[int, _Held] = {}
        self._last_name = _PASSED
        self._admissions = 0

    @property
    def free(self) -> int:
        """Blocks that nobody holds, with content or without."""
        return self._blanks + len(self._queue)

    @property
    def used(self) -> int:
        """Blocks held by requests."""
        return self.total - self.free

    def rank(self, request: Request) -> int:
        """Return the place of an admitted request in the order of admission."""
        return self._held[request.id].rank

    def hit(self, request: Request) -> tuple[int, int]:
        """Return the cached blocks per group that the request starts with, and how many nobody holds.

        Full groups must have all of them, window groups those that the next token sees; at least one token
        is left to compute. What nobody holds is counted over all groups.
        """
        if self._content is None:
            return 0, 0
        keys = self._content.keys(request, (request.known - 1) // self.block_size)
        keys = keys[: self._window_hit(keys[: self._full_hit(keys)])]
        return len(keys), sum(not self._holders[block] for group in self._hit_blocks(keys) for block in group)

    def admission_need(self, first: int, whole: int, hits: int, idle_hits: int) -> int:
        """Return the free blocks without which a request that would hold `first` tokens stays out.

        `whole` tokens must fit as well, but of them a window group counts no more than its limit.
        """
        blocks = blocks_for(whole, self.block_size)
        in_window = blocks if self._window_limit is None else min(blocks, self._window_limit)
        now = self.groups * (blocks_for(first, self.block_size) - hits)
        in_all = len(self._full_groups) * (blocks - hits)
        in_all += len(self.window_groups) * max(0, in_window - hits)
        return max(now, in_all) + idle_hits

    def needed(self, request: Request, computed: int, tokens: int) -> int:
        """Give back what the window has passed; return the blocks that `tokens` after `computed` need."""
        self.slide(request, computed)
        return self._more(computed, tokens)

    def admit(self, request: Request, hits: int, tokens: int) -> None:
        """Hold the first `hits` cached blocks of each group and what `tokens` further tokens need."""
        keys = self._content.keys(request, hits) if self._content else []
        found = self._hit_blocks(keys)
        fork = self._fork(request, hits)
        for block in (block for group in found for block in group):
            if not self._holders[block]:
                del self._queue[block]
            self._holders[block] += 1
        passed = self._passed(hits * self.block_size)
        for group in self.window_groups:
            found[group][:0] = [_PASSED] * passed
        self._admissions += 1
        self._held[request.id] = _Held(self._admissions, found, passed, fork)
        self._cover(request, hits * self.block_size, tokens)

    def extend(self, request: Request, tokens: int) -> None:
        """Hold what `tokens` more prompt tokens of an admitted request need."""
        self.slide(request, request.computed)
        self._cover(request, request.computed, tokens)

    def fill(self, request: Request, blocks: int) -> None:
        """Enter the request's blocks up to number `blocks` in the cache, in every group."""
        for group in range(self.groups):
            self._enter(request, group, blocks)

    def take(self, blocks: int) -> None:
        """Hold `blocks` more for decoding requests, which get names when they leave or windows pass them."""
        if blocks > self.free:
            raise InvariantError(f"took {blocks} KV blocks of {self.free} free")
        blanks = min(blocks, self._blanks)
        self._blanks -= blanks
        for _ in range(blocks - blanks):
            self._forget(self._queue.popitem(last=False)[0])

    def slide(self, request: Request, computed: int) -> None:
        """Give back the blocks of window groups that no token from `computed` on sees, the last first."""
        held = self._held[request.id]
        passed = self._passed(computed)
        if passed > held.passed:
            for group in self.window_groups:
                self._enter(request, group, passed)
                self._give(held.blocks[group][held.passed : passed])
            held.passed = passed

    def release(self, request: Request, tokens: int) -> None:
        """Give back all blocks of a request whose first `tokens` tokens are computed or scheduled.

        One group after the other, in each group the request's last block first.
        """
        self.fill(request, tokens // self.block_size)
        held = self._held.pop(request.id)
        if self._content is not None:
            self._content.forget(request)
        blocks = blocks_for(tokens, self.block_size)
        for group, named in enumerate(held.blocks):
            gone = held.passed if group in self.window_groups else 0
            self._give((named + [self._name() for _ in range(blocks - len(named))])[gone:])

    # -- the groups ------------------------------------------------------------------------------------

    def _passed(self, computed: int) -> int:
        """Return the blocks that end before all that the token after `computed` sees."""
        return max(0, computed - self.window + 1) // self.block_size

    def _more(self, computed: int, tokens: int) -> int:
        size = self.block_size
        return self.groups * (blocks_for(computed + tokens, size) - blocks_for(computed, size))

    def _cover(self, request: Request, computed: int, tokens: int) -> None:
        """Take the blocks for `tokens` after `computed`, and enter those that become full in the cache."""
        self.take(self._more(computed, tokens))
        self.fill(request, (computed + tokens) // self.block_size)

    def _full_hit(self, keys: Sequence[int]) -> int:
        """Return how many of the keys, from the first, all full groups have cached."""
        cached, groups = self._cached, self._full_groups
        missing = (i for i, key in enumerate(keys) if any((group, key) not in cached for group in groups))
        return next(missing, len(keys))

    def _window_hit(self, keys: Sequence[int]) -> int:
        """Return how many of the keys remain if window groups must have all that the next token sees."""
        cached, groups = self._cached, self.window_groups
        run = 0
        for index in range(len(keys) - 1, -1, -1):
            run = run + 1 if all((group, keys[index]) in cached for group in groups) else 0
            if run == self._visible:
                return index + run
        return run

    def _hit_blocks(self, keys: Sequence[int]) -> list[list[int]]:
        """Return the blocks of each group that a request with these cached keys takes up."""
        seen = keys[self._passed(len(keys) * self.block_size) :]
        windows = self.window_groups
        return [
            [self._oldest(group, key) for key in (seen if group in windows else keys)]
            for group in range(self.groups)
        ]

    def _fork(self, request: Request, hits: int) -> int:
        """Return where full groups stop to have a beginning of which window groups had only `hits` blocks."""
        if self._content is None or self._retention is None or not self._full_groups:
            return 0
        keys = self._content.keys(request, (request.known - 1) // self.block_size)
        full = self._full_hit(keys)
        return full if full > hits else 0

    def _is_kept(self, request: Request, group: int, index: int) -> bool:
        """Return whether the request's block number `index`, now full, enters the cache."""
        if self._retention is None or group not in self.window_groups:
            return True
        ends = ((request.prompt_tokens - 1) // self.block_size, self._held[request.id].fork)
        if any(end - self._visible <= index < end for end in ends):
            return True
        stretch = self._retention
        return stretch > 0 and index % stretch >= stretch - self._visible

    def _oldest(self, group: int, key: int) -> int:
        return next(iter(self._cached[group, key]))

    # -- names and the free list -----------------------------------------------------------------------

    def _name(self) -> int:
        """Name a block that one request holds."""
        self._last_name += 1
        self._holders[self._last_name] = 1
        return self._last_name

    def _enter(self, request: Request, group: int, full: int) -> None:
        """Name the request's blocks up to the `full`-th, and enter them in the cache."""
        held = self._held[request.id].blocks[group]
        if full <= len(held):
            return
        if self._content is None:
            held += [self._name() for _ in range(full - len(held))]
            return
        first = len(held)
        for index, key in enumerate(self._content.keys(request, full)[first:], first):
            block = self._name()
            held.append(block)
            if self._is_kept(request, group, index):
                self._tag_of[block] = group, key
                self._cached.setdefault((group, key), {})[block] = None

    def _give(self, blocks: Sequence[int]) -> None:
        """Return blocks that a request held, the last of them first."""
        for block in reversed(blocks):
            self._holders[block] -= 1
            if self._holders[block]:
                continue
            if self._blanks_first and block not in self._tag_of:
                del self._holders[block]
                self._blanks += 1
            else:
                self._queue[block] = None

    def _forget(self, block: int) -> None:
        """A free block is reused: its content may still be in other blocks."""
        del self._holders[block]
        tag = self._tag_of.pop(block, None)
        if tag is not None:
            del self._cached[tag][block]
            if not self._cached[tag]:
                del self._cached[tag]
