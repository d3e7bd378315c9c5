"""KV cache accounting."""

from simserve.kv.pool import BlockPool, blocks_for
from simserve.kv.prefix import Content, PrefixCache

__all__ = ["BlockPool", "Content", "PrefixCache", "blocks_for"]
