"""FlashMLA, in both of its interfaces."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from stand_ins.float64 import int32, paged


def flash_mla(older: bool) -> Any:
    """FlashMLA: of 2026 (plans in its first call), or of 2025 (takes a plan)."""

    def get_mla_metadata(*args: Any) -> tuple[Any, Any]:
        int32(args[0])
        return ("plan", torch.zeros(1, dtype=torch.int32)) if older else (SimpleNamespace(), None)

    def flash_mla_with_kvcache(
        q, k_cache, block_table, cache_seqlens, head_dim_v, tile_scheduler_metadata, num_splits=None,
        softmax_scale=None, causal=False, is_fp8_kvcache=False,
    ):  # fmt: skip
        int32(block_table, cache_seqlens)
        assert (num_splits is not None) == older
        assert k_cache.shape[1:] == (64, 1, 576)
        starts = torch.arange(len(q) + 1)
        caches = (k_cache, k_cache[..., :head_dim_v])
        made = paged(q.squeeze(1), caches, block_table, cache_seqlens, starts, softmax_scale, 0)
        return made.to(q.dtype).unsqueeze(1), None

    return SimpleNamespace(get_mla_metadata=get_mla_metadata, flash_mla_with_kvcache=flash_mla_with_kvcache)
