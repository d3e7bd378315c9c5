"""The pools of compressed attention (DeepSeek-V4) in SGLang: sized by one number of bytes per token.

Compressed tokens and the indexer's keys have pools for every token, windows and the states of the first
compressor one for `swa_full_tokens_ratio` of them (0.1 for this model); states of the second belong to
request slots. Follows `DSV4PoolConfigurator` of SGLang 0.5.2x; that windows can run out first is not
modelled.
"""

from __future__ import annotations

from simserve.model.kv import PackedBlocks
from simserve.model.layers import CompressedAttention
from simserve.model.layers.compressed import INDEXED_RATIO
from simserve.model.spec import ModelSpec, Stage

PAGE_TOKENS = 256
_WINDOW_SHARE = 0.1
_STATE_RING = 8
"""States that a page of the window pool keeps."""


def packed_pools(
    model: ModelSpec, stage: Stage, kv_dtype: str, step_tokens: int, sequences: int
) -> PackedBlocks:
    """Return the bytes of a page of 256 tokens, and of what request slots hold."""
    token, slot = 0.0, 0
    for group, count in zip(model.layers, stage.layers, strict=True):
        for attention in group.attentions:
            assert isinstance(attention, CompressedAttention)
            states = attention.state_bytes(attention.head_dim) + attention.state_bytes(
                attention.index_head_dim
            )
            windows = attention.entry_bytes(kv_dtype)
            if attention.ratio == INDEXED_RATIO:
                windows += _STATE_RING * states / attention.window
            elif attention.ratio:
                slot += count * attention.ratio * attention.state_bytes(attention.head_dim)
            token += count * (attention.token_bytes(1, kv_dtype) + _WINDOW_SHARE * windows)
    words = f"pages of {PAGE_TOKENS} tokens, {token:,.0f} B per token with a tenth of it for windows"
    return PackedBlocks(round(PAGE_TOKENS * token), PAGE_TOKENS, 0, 0, (sequences + 2) * slot, words)
