"""KV pools of a replica that speculates: requests hold slots for drafts that may never become tokens.

Follows vLLM V1: a running request is given blocks for its scheduled tokens, drafts included, and for
`lookahead` more (`num_lookahead_tokens`), within max_model_len. Blocks once held stay held when drafts are
rejected, so their number is kept by request here. EAGLE and multi-token prediction computed the last block of
a prefix hit again, for their draft starts from the hidden states in front of it; 0.33 does so only with a KV
connector (else its hashes cover the token after a block, and the hit is whole).
"""

from __future__ import annotations

from simserve.core import Request
from simserve.core.batch import Drafting
from simserve.kvcache.blocks import BlockPool, blocks_for
from simserve.kvcache.prefix import Content, PrefixCache


class DraftSlots:
    """What both pools do for requests that hold slots for drafts."""

    block_size: int

    def _open(self, drafting: Drafting, longest: int) -> None:
        """`drafting` says what is held beyond scheduled tokens; nobody holds more than `longest` tokens."""
        self.lookahead, self.longest = drafting.lookahead, longest
        self.longest_ceiling = longest + self.block_size - 1
        """`longest`, so that division by the block size rounds up."""
        self.blocks: dict[int, int] = {}
        """Blocks of each request that does not decode (decoding groups count those of their members)."""
        self.admits_lookahead = drafting.lookahead_at_admission
        """True if who is admitted holds these slots at once."""

    def reach(self, tokens: int) -> int:
        """Return the blocks of a running request when its first `tokens` tokens are scheduled."""
        return blocks_for(min(tokens + self.lookahead, self.longest), self.block_size)

    def first_blocks(self, tokens: int) -> int:
        """Return the blocks of a request that is admitted with its first `tokens` tokens, cached ones too."""
        return self.reach(tokens) if self.admits_lookahead else blocks_for(tokens, self.block_size)

    def needed(self, request: Request, computed: int, tokens: int) -> int:
        """Return the blocks that `tokens` more after `computed` need, beyond those that are held."""
        return max(0, self.reach(computed + tokens) - self.blocks[request.id])

    def admission_need(self, first: int, whole: int, hits: int, idle_hits: int) -> int:
        """Return the free blocks without which a request stays out (see `BlockPool`)."""
        wanted = max(self.first_blocks(first), blocks_for(whole, self.block_size))
        return wanted - hits + idle_hits


class DraftBlockPool(DraftSlots, BlockPool):
    """A `BlockPool` with slots for drafts."""

    def __init__(self, total: int, block_size: int, drafting: Drafting, longest: int) -> None:
        """An empty pool; nobody holds more than `longest` tokens."""
        super().__init__(total, block_size)
        self._open(drafting, longest)

    def admit(self, request: Request, hits: int, tokens: int) -> None:
        """Hold what the first `tokens` tokens of a request need."""
        blocks = self.blocks[request.id] = self.first_blocks(tokens)
        self.take(blocks)

    def extend(self, request: Request, tokens: int) -> None:
        """Hold what `tokens` more prompt tokens of an admitted request need."""
        more = self.needed(request, request.computed, tokens)
        self.take(more)
        self.blocks[request.id] += more

    def release(self, request: Request, tokens: int) -> None:
        """Give back all blocks of a request, those of drafts too."""
        self.give(self.blocks.pop(request.id))


class DraftPrefixCache(DraftSlots, PrefixCache):
    """A `PrefixCache` with slots for drafts."""

    def __init__(
        self,
        total: int,
        block_size: int,
        content: Content,
        blanks_first: bool,
        drafting: Drafting,
        longest: int,
    ) -> None:
        """As `PrefixCache`; nobody holds more than `longest` tokens."""
        super().__init__(total, block_size, content, blanks_first)
        self._open(drafting, longest)
        self._drops_hit = drafting.drops_hit

    def hit(self, request: Request) -> tuple[int, int]:
        """Return the cached blocks that the request starts with (see `PrefixCache.hit`)."""
        hits, idle = super().hit(request)
        if not self._drops_hit or not hits:
            return hits, idle
        last = self._content.keys(request, hits)[-1]
        held_by = self._holders.get(last)
        if held_by is None:
            held_by = self._holders[self._copies[last][0]]
        return hits - 1, idle - (held_by < 0)

    def admit(self, request: Request, hits: int, tokens: int) -> None:
        """Hold the first `hits` cached blocks and what `tokens` further tokens need."""
        self._hold_hits(request, hits)
        known = hits * self.block_size + tokens
        blocks = self.blocks[request.id] = self.first_blocks(known)
        self.take(blocks - hits)
        self._enter(request, self._held[request.id], known // self.block_size)

    def hold(self, request: Request, hits: int, blocks: int) -> None:
        """Hold the first `hits` cached blocks and `blocks` more, whose content is on its way."""
        super().hold(request, hits, blocks)
        self.blocks[request.id] = hits + blocks

    def extend(self, request: Request, tokens: int) -> None:
        """Hold what `tokens` more prompt tokens of an admitted request need."""
        more = self.needed(request, request.computed, tokens)
        self.take(more)
        self.blocks[request.id] += more
        full = (request.computed + tokens) // self.block_size
        self._enter(request, self._held[request.id], full)

    def release(self, request: Request, tokens: int) -> None:
        """Give back all blocks of a request whose first `tokens` tokens are certain; drafts' blocks first."""
        self._free_blanks(self.blocks.pop(request.id) - blocks_for(tokens, self.block_size))
        super().release(request, tokens)
