"""Which unlocked leaf of a radix tree goes first: the eviction rules of SGLang 0.5.23.

A rule gives each node a key; the leaf with the smallest key is evicted first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class EvictionRule(NamedTuple):
    """An order of eviction."""

    key: Callable[[Any], tuple[int, ...]]
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
