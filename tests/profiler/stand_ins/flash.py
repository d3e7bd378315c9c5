"""flash-attn 2.8, and the build of it in vLLM 0.33.0."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from stand_ins.float64 import attend, int32, paged


def flash_attn() -> Any:
    """Return flash-attn."""

    def flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None,
        causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False,
        return_attn_probs=False, block_table=None,
    ):  # fmt: skip
        int32(cu_seqlens_q, cu_seqlens_k, block_table)
        assert causal
        assert k.shape[1] % 256 == 0
        lengths = cu_seqlens_k.diff()
        assert int(lengths.max()) == max_seqlen_k
        assert int(cu_seqlens_q.diff().max()) == max_seqlen_q
        return paged(q, (k, v), block_table, lengths, cu_seqlens_q, softmax_scale, window_size[0] + 1).to(
            q.dtype
        )

    return SimpleNamespace(flash_attn_varlen_func=flash_attn_varlen_func)


def vllm_flash_attn() -> Any:
    """Return vLLM's build of it."""

    def flash_attn_varlen_func(
        q, k, v, max_seqlen_q, cu_seqlens_q, max_seqlen_k, cu_seqlens_k=None, seqused_k=None, q_v=None,
        dropout_p=0.0, softmax_scale=None, causal=False, window_size=None, softcap=0.0, alibi_slopes=None,
        deterministic=False, return_attn_probs=False, block_table=None, return_softmax_lse=False, out=None,
        scheduler_metadata=None, q_descale=None, k_descale=None, v_descale=None, num_splits=0,
        output_scale=None, fa_version=2,
    ):  # fmt: skip
        int32(cu_seqlens_q)
        assert causal
        assert fa_version == 3
        if block_table is None:
            parts = [
                attend(q[a:b], k[c:d], v[c:d], softmax_scale, 0)
                for a, b, c, d in zip(
                    cu_seqlens_q, cu_seqlens_q[1:], cu_seqlens_k, cu_seqlens_k[1:], strict=False
                )
            ]
            return torch.cat(parts).to(q.dtype)
        int32(block_table, seqused_k)
        if k.dtype == torch.float8_e4m3fn:
            assert q.dtype == k.dtype
            assert q_descale.shape == (len(seqused_k), k.shape[2])
        made = paged(q, (k, v), block_table, seqused_k, cu_seqlens_q, softmax_scale, window_size[0] + 1)
        return made.to(torch.bfloat16)

    return SimpleNamespace(flash_attn_varlen_func=flash_attn_varlen_func)
