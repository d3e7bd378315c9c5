"""Which pool of KV blocks a vLLM replica has: counted, cached by prefix, or in groups where windows slide."""

from __future__ import annotations

from collections.abc import Sequence

from simserve.kv import BlockPool, Content, HybridCache, Pool, PrefixCache, blocks_for
from simserve.policy.vllm.params import VllmParams


def make_pool(
    params: VllmParams,
    kv_blocks: int,
    block_size: int,
    max_model_len: int,
    content: Content | None,
    windows: Sequence[int],
) -> Pool:
    """Return an empty pool; with `content` full blocks are cached.

    `windows` are those of the KV groups (0: full attention); with none of them there is one group.
    """
    newest = params.version == "0.33"
    if not any(windows):
        if content is None:
            return BlockPool(kv_blocks, block_size)
        return PrefixCache(kv_blocks, block_size, content, blanks_first=newest)
    if not newest:
        return HybridCache(kv_blocks, block_size, windows, content, blanks_first=False)
    batches = 2 if params.async_scheduling else 1
    interval = params.prefix_cache_retention_interval
    reach = min(max(windows) - 1 + batches * params.max_num_batched_tokens, max_model_len)
    return HybridCache(
        kv_blocks,
        block_size,
        windows,
        content,
        window_limit=blocks_for(reach, block_size) + 1,
        retention_tokens=None if interval == "all" else interval,
    )
