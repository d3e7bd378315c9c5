"""A radix tree over token runs: SGLang's prefix cache, as far as a scheduler can see it.

Models which prefixes are cached, which are in use, and which goes first when room is needed; no KV data.
Follows SGLang 0.5.23: nodes hold runs of tokens aligned to pages, a request in flight locks the path of its
prefix, and only unlocked leaves are evicted, in the order of an eviction rule (see `radix_eviction`).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import NamedTuple, Protocol

from simserve.kvcache.content import Cursor, Runs, split, tokens_in
from simserve.kvcache.prefix import Below

# Which unlocked leaf of a radix tree goes first: the eviction rules of SGLang 0.5.23.
#
# A rule gives each node a key; the leaf with the smallest key is evicted first.


class EvictionRule(NamedTuple):
    """An order of eviction."""

    key: Callable[[Node], tuple[int, ...]]
    """Key of a node: smallest goes first."""
    grows: bool = True
    """True if an access never lowers the key: an old entry of a heap can then be corrected when it is met."""


PROTECTED_HITS = 2
"""Hits from which slru counts a node as protected."""

EVICTION_RULES: dict[str, EvictionRule] = {
    "lru": EvictionRule(lambda node: (node.accessed,)),
    "lfu": EvictionRule(lambda node: (node.hits, node.accessed)),
    "fifo": EvictionRule(lambda node: (node.created,)),
    "filo": EvictionRule(lambda node: (-node.created,)),
    "mru": EvictionRule(lambda node: (-node.accessed,), grows=False),
    "priority": EvictionRule(lambda node: (node.priority, node.accessed)),
    "slru": EvictionRule(lambda node: (int(node.hits >= PROTECTED_HITS), node.accessed)),
}


LEAST_PRIORITY = -(1 << 62)
"""The priority of a lookup, which raises no node's."""


class PageNames(Protocol):
    """Gives pages names by which tiers below HBM know them (see `content.RunContent`)."""

    def key(self, parent: int, piece: Runs) -> int:
        """Return the name of the page `piece` that follows the page called `parent` (0: none)."""
        ...


class Node:
    """One edge of the tree with the run of tokens that leads to it."""

    __slots__ = (
        "accessed",
        "children",
        "created",
        "hits",
        "keys",
        "length",
        "locks",
        "parent",
        "priority",
        "runs",
    )

    def __init__(self, parent: Node | None, runs: Runs, length: int, clock: int, priority: int) -> None:
        """`clock` is the tree's access count, which stands in for the time."""
        self.parent = parent
        self.children: dict[Runs, Node] = {}
        self.runs = runs
        self.length = length
        self.locks = 0
        self.accessed = clock
        self.created = clock
        self.hits = 0
        self.priority = priority
        self.keys: list[int] = []
        """Names of its pages; empty if there are no tiers below."""


class RadixTree:
    """Which token sequences are cached."""

    def __init__(self, page_size: int = 1, eviction: str = "lru") -> None:
        """`page_size` in tokens; `eviction` names one of `EVICTION_RULES`."""
        self.page_size = page_size
        self.root = Node(None, (), 0, 0, 0)
        self.root.locks = 1
        self.evictable = 0
        """Cached tokens that no request uses."""
        self.protected = 0
        """Cached tokens that some request uses."""
        self._rule: EvictionRule = EVICTION_RULES[eviction]
        self._clock = 0
        self._heap: list[tuple[tuple[int, ...], int, Node]] = []
        self._pushes = 0
        self._names: PageNames | None = None
        self._below: Below | None = None

    def put_above(self, below: Below, names: PageNames) -> None:
        """Tell `below` of every page that enters an empty tree or leaves it, from now on."""
        self._below, self._names = below, names

    def match(self, runs: Runs, tokens: int) -> tuple[Node, int]:
        """Return the end and the tokens of the longest cached prefix of the first `tokens` tokens of `runs`.

        A prefix that ends inside a node splits the node. Refreshes the access time of the path.
        """
        self._clock += 1
        node, cursor = self._walk(runs, self._aligned(tokens), LEAST_PRIORITY, tokens)
        return node, self._aligned(tokens) - cursor.left

    def peek(self, runs: Runs, tokens: int) -> int:
        """Return the tokens of the longest cached prefix of the first `tokens` of `runs`; touch nothing."""
        cursor = Cursor(runs, self._aligned(tokens))
        node = self.root
        while cursor.left:
            child = node.children.get(cursor.peek(self.page_size))
            if child is None or self._matched(cursor, child) < child.length:
                break
            node = child
        return self._aligned(tokens) - cursor.left

    def insert(self, runs: Runs, tokens: int, priority: int = 0, counted: int = 0) -> int:
        """Cache the first `tokens` of `runs`; return how many of them (a prefix) were cached already.

        Nodes that end within the first `counted` tokens count no hit: their request inserted them before.
        """
        self._clock += 1
        tokens = self._aligned(tokens)
        node, cursor = self._walk(runs, tokens, priority, counted)
        known = tokens - cursor.left
        if cursor.left:
            self._grow(node, cursor, priority)
        return known

    def lock(self, node: Node) -> None:
        """Protect the path from the root to `node` from eviction, once more."""
        while node.parent is not None:
            if node.locks == 0:
                self.evictable -= node.length
                self.protected += node.length
            node.locks += 1
            node = node.parent

    def unlock(self, node: Node) -> None:
        """Take one protection off the path from the root to `node`."""
        while node.parent is not None:
            node.locks -= 1
            if node.locks == 0:
                self.evictable += node.length
                self.protected -= node.length
                self._offer(node)
            node = node.parent

    def evict(self, tokens: int) -> int:
        """Drop whole unlocked leaves until `tokens` tokens are free or none is left; return the tokens."""
        freed = 0
        while freed < tokens and self._heap:
            key, _, node = heapq.heappop(self._heap)
            if node.parent is None or node.locks or node.children:
                continue
            if key != self._rule.key(node):
                if self._rule.grows:
                    self._offer(node)
                continue
            freed += node.length
            self._remove(node)
        return freed

    def _aligned(self, tokens: int) -> int:
        """Return `tokens` rounded down to whole pages."""
        return tokens - tokens % self.page_size

    def _walk(self, runs: Runs, tokens: int, priority: int, counted: int) -> tuple[Node, Cursor]:
        """Follow the first `tokens` of `runs`; nodes that end beyond `counted` tokens count a hit."""
        cursor = Cursor(runs, tokens)
        node = self.root
        while cursor.left:
            child = node.children.get(cursor.peek(self.page_size))
            if child is None:
                break
            matched = self._matched(cursor, child)
            if matched < child.length:
                self._touch(child, LEAST_PRIORITY, False)
                node = self._split(child, matched)
                self._touch(node, priority, tokens - cursor.left > counted)
                break
            self._touch(child, priority, tokens - cursor.left > counted)
            node = child
        return node, cursor

    def _matched(self, cursor: Cursor, child: Node) -> int:
        """Move `cursor` along `child`; return the tokens in common, in whole pages."""
        matched = cursor.match(child.runs)
        cursor.rewind(matched % self.page_size)
        return self._aligned(matched)

    def _touch(self, node: Node, priority: int, hit: bool) -> None:
        node.accessed = self._clock
        node.priority = max(node.priority, priority)
        node.hits += hit
        if not self._rule.grows:
            self._offer(node)

    def _split(self, child: Node, tokens: int) -> Node:
        """Cut `child` after `tokens` tokens and return the new node that holds them."""
        head, tail = split(child.runs, tokens)
        parent = child.parent
        assert parent is not None
        upper = Node(parent, head, tokens, self._clock, child.priority)
        upper.locks = child.locks
        upper.hits = child.hits
        upper.created = child.created
        parent.children[self._first_page(head)] = upper
        upper.children[self._first_page(tail)] = child
        child.parent = upper
        child.runs = tail
        child.length -= tokens
        pages = tokens // self.page_size
        upper.keys, child.keys = child.keys[:pages], child.keys[pages:]
        return upper

    def _grow(self, node: Node, cursor: Cursor, priority: int) -> None:
        runs = cursor.read(cursor.left)
        leaf = Node(node, runs, tokens_in(runs), self._clock, priority)
        leaf.hits = 1
        node.children[self._first_page(runs)] = leaf
        if self._below is not None:
            leaf.keys = self._name(node, runs)
            self._below.filled(leaf.keys)
        self.evictable += leaf.length
        self._offer(leaf)

    def _remove(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        del parent.children[self._first_page(node.runs)]
        node.parent = None
        if self._below is not None:
            self._below.dropped(node.keys[::-1])
        self.evictable -= node.length
        self._offer(parent)

    def _name(self, parent: Node, runs: Runs) -> list[int]:
        """Return the names of the pages of `runs`, which follow those of `parent`."""
        assert self._names is not None
        last = parent.keys[-1] if parent.keys else 0
        keys: list[int] = []
        while runs:
            page, runs = split(runs, self.page_size)
            last = self._names.key(last, page)
            keys.append(last)
        return keys

    def _first_page(self, runs: Runs) -> Runs:
        return split(runs, self.page_size)[0]

    def _offer(self, node: Node) -> None:
        """Put `node` up for eviction if it is an unlocked leaf."""
        if not node.locks and not node.children and node.parent is not None:
            self._pushes += 1
            heapq.heappush(self._heap, (self._rule.key(node), self._pushes, node))
