"""What SGLang sets aside: a static share holds weights and cache, all else lives outside it."""

from __future__ import annotations

from simserve.model.kv import PackedBlocks
from simserve.model.layers import CompressedAttention
from simserve.model.layers.compressed import INDEXED_RATIO
from simserve.model.memory_rules import FILTERING_SAMPLER, MemoryRules
from simserve.model.spec import ModelSpec, Stage

# The pools of compressed attention (DeepSeek-V4), sized by one number of bytes per token.
#
# Compressed tokens and the indexer's keys have pools for every token, windows and the states of the first
# compressor one for `swa_full_tokens_ratio` of them; states of the second belong to request slots. Follows
# `DSV4PoolConfigurator` of SGLang 0.5.2x; that windows can run out first is not modelled.

PACKED_PAGE_TOKENS = 256
_WINDOW_SHARE = 0.1
"""`swa_full_tokens_ratio` that the server sets for this model (`arg_groups/deepseek_v4_hook.py`)."""
_STATE_RING = 8
"""States that a page of the window pool keeps (`get_compress_state_ring_size`)."""


def packed_pools(
    model: ModelSpec, stage: Stage, kv_dtype: str, step_tokens: int, sequences: int
) -> PackedBlocks:
    """Return the bytes of a page of 256 tokens, and of what request slots hold."""
    token, slot = 0.0, 0
    for group, count in zip(model.layers, stage.layers, strict=True):
        for attention in group.attentions:
            assert isinstance(attention, CompressedAttention)
            widths = (attention.head_dim, attention.index_head_dim)
            states = sum(attention.state_bytes(width) for width in widths)
            windows = attention.entry_bytes(kv_dtype)
            if attention.ratio == INDEXED_RATIO:
                windows += _STATE_RING * states / attention.window
            elif attention.ratio:
                slot += count * attention.ratio * attention.state_bytes(attention.head_dim)
            token += count * (attention.token_bytes(1, kv_dtype) + _WINDOW_SHARE * windows)
    words = f"pages of {PACKED_PAGE_TOKENS} tokens, {token:,.0f} B per token with a tenth of it for windows"
    page_bytes, fixed_bytes = round(PACKED_PAGE_TOKENS * token), (sequences + 2) * slot
    return PackedBlocks(page_bytes, PACKED_PAGE_TOKENS, 0, 0, fixed_bytes, words)


_RULES = MemoryRules(
    "SGLang",
    activation_inside=False,
    graphs_inside=False,
    logit_bytes=FILTERING_SAMPLER,
    filters=False,
    keeps_expert_buffers=False,
    copies_latents=True,
    kernels_bytes=0,
    of_free_memory=True,
    packed=packed_pools,
)
"""Pool = free memory after loading - free memory before it x (1 - share) (0.5.23, `kv_cache_configurator`):
kernels and buffers that come later lie outside."""


def memory_rules(release: tuple[int, ...] | None) -> MemoryRules:
    """Return the rules, which are those of 0.5.23 whatever the release."""
    return _RULES
