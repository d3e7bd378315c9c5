"""KV cache accounting."""

from simserve.kvcache.blocks import BlockPool, blocks_for
from simserve.kvcache.hybrid import HybridCache
from simserve.kvcache.prefix import Content, PrefixCache

Pool = BlockPool | PrefixCache | HybridCache
"""Blocks of one replica, as a policy holds them."""

__all__ = ["BlockPool", "Content", "HybridCache", "Pool", "PrefixCache", "blocks_for"]
