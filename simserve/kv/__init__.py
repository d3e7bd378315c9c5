"""KV cache accounting."""

from simserve.kv.pool import BlockPool, blocks_for

__all__ = ["BlockPool", "blocks_for"]
