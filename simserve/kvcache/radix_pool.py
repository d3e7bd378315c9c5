"""A pool of KV tokens with a radix tree on top: SGLang's token allocator and prefix cache together.

Counts tokens, page by page; which page holds which token is not modelled. With the cache off the same
calls only count. Follows SGLang 0.5.23: a request's KV is partly the tree's (its locked prefix) and partly
its own; caching a request hands its own tokens over and frees those that the tree already had.
"""

from __future__ import annotations

from simserve.kvcache.content import Runs
from simserve.kvcache.radix import Node, RadixTree


class Holding:
    """The KV of one request: tokens stored, and how many of them belong to the tree."""

    __slots__ = ("inserted", "node", "shared", "stored")

    def __init__(self) -> None:
        self.stored = 0
        """Tokens with KV."""
        self.shared = 0
        """Leading tokens of these that are the tree's, locked by this request."""
        self.inserted = 0
        """Leading tokens that this request has inserted in the tree."""
        self.node: Node | None = None
        """End of the locked path."""


class RadixPool:
    """Free tokens of one replica, and the prefix cache that may give some back."""

    def __init__(self, tokens: int, page_size: int = 1, eviction: str = "lru", cache: bool = True) -> None:
        """`tokens` is the capacity; only whole pages of it are used."""
        self.page_size = page_size
        self.capacity = tokens - tokens % page_size
        self.free = self.capacity
        """Tokens in no page that anybody uses."""
        self.tree = RadixTree(page_size, eviction)
        self.cache = cache

    @property
    def room(self) -> int:
        """Tokens free or evictable."""
        return self.free + self.tree.evictable

    def paged(self, tokens: int) -> int:
        """Return `tokens` rounded up to whole pages."""
        return -(-tokens // self.page_size) * self.page_size

    def lookup(self, runs: Runs, tokens: int) -> tuple[Node | None, int]:
        """Return the end and the length of the longest cached prefix of the first `tokens` of `runs`."""
        return self.tree.match(runs, tokens) if self.cache else (None, 0)

    def peek(self, runs: Runs, tokens: int) -> int:
        """Return the length of the longest cached prefix of the first `tokens` of `runs`; touch nothing."""
        return self.tree.peek(runs, tokens) if self.cache else 0

    def hold(self, holding: Holding, node: Node | None, tokens: int) -> None:
        """Let an admitted request use its cached prefix of `tokens` tokens that ends at `node`."""
        if node is not None:
            self.tree.lock(node)
        holding.node, holding.shared, holding.stored = node, tokens, tokens

    def need(self, holding: Holding, tokens: int) -> int:
        """Return the tokens of new pages needed to grow to `tokens` tokens."""
        return self.paged(tokens) - self.paged(holding.stored)

    def make_room(self, tokens: int) -> bool:
        """Evict, if needed, so that `tokens` tokens are free; return whether they are."""
        if self.free < tokens:
            self.free += self.tree.evict(tokens - self.free)
        return self.free >= tokens

    def cache_prompt(
        self, holding: Holding, runs: Runs, tokens: int, prompt_tokens: int, priority: int
    ) -> None:
        """Insert the first `tokens` tokens of a request that goes on, and lock them."""
        if not self.cache:
            return
        self._hand_over(holding, runs, tokens, prompt_tokens, priority)
        node, matched = self.tree.match(runs, tokens)
        self._unlock(holding)
        self.tree.lock(node)
        holding.node, holding.shared = node, matched

    def cache_finished(
        self, holding: Holding, runs: Runs, tokens: int, prompt_tokens: int, priority: int
    ) -> None:
        """Insert the first `tokens` tokens of a request that ends, and free whatever is left of it."""
        if self.cache:
            self._hand_over(holding, runs, tokens, prompt_tokens, priority)
            holding.shared = self._whole_pages(tokens)
        self.drop(holding)

    def drop(self, holding: Holding) -> None:
        """Free the tokens that are a request's own, uncached, and give up its lock."""
        self.free += self.paged(holding.stored) - holding.shared
        self._unlock(holding)
        holding.stored = holding.shared = holding.inserted = 0

    def _hand_over(
        self, holding: Holding, runs: Runs, tokens: int, prompt_tokens: int, priority: int
    ) -> None:
        """Insert prompt and output, then the prompt alone: a node ends where the prompt ends.

        So output can be evicted without its prompt; the prompt is one more in priority.
        """
        known = self.tree.insert(runs, tokens, priority, holding.inserted)
        holding.inserted = max(holding.inserted, tokens)
        if 0 < self._whole_pages(prompt_tokens) < self._whole_pages(tokens):
            self.tree.insert(runs, prompt_tokens, priority + 1, prompt_tokens)
        self.free += max(0, known - holding.shared)

    def _whole_pages(self, tokens: int) -> int:
        """Return `tokens` rounded down to whole pages."""
        return tokens - tokens % self.page_size

    def _unlock(self, holding: Holding) -> None:
        if holding.node is not None:
            self.tree.unlock(holding.node)
            holding.node = None
