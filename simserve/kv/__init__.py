"""KV cache accounting."""

from simserve.kv.hybrid import HybridCache
from simserve.kv.pool import BlockPool, blocks_for
from simserve.kv.prefix import Content, PrefixCache

Pool = BlockPool | PrefixCache | HybridCache
"""Blocks of one replica, as a policy holds them."""

__all__ = ["BlockPool", "Content", "HybridCache", "Pool", "PrefixCache", "blocks_for"]
