"""FlashInfer 0.7: wrappers that plan first and run then."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch

from stand_ins.float64 import attend, int32, paged


class _Pages:
    """What FlashInfer's wrappers share."""

    def __init__(self, float_workspace_buffer: Any, kv_layout: str = "NHD", **_: Any) -> None:
        assert float_workspace_buffer.dtype == torch.uint8
        assert kv_layout == "NHD"

    def _plan(self, indptr: Any, indices: Any, last: Any, size: int, scale: float, window_left: int) -> None:
        int32(indptr, indices, last)
        rows = [indices[a:b] for a, b in pairwise(indptr.tolist())]
        widest = max(map(len, rows))
        self.table = torch.stack([torch.cat([row, row[:1].repeat(widest - len(row))]) for row in rows])
        self.lengths = (indptr.diff() - 1) * size + last
        self.scale, self.window = scale, window_left + 1

    def run(self, q: Any, paged_kv_cache: Any) -> Any:
        made = paged(q, paged_kv_cache, self.table, self.lengths, self.starts, self.scale, self.window)
        return made.to(q.dtype)


class _DecodeWrapper(_Pages):
    def plan(
        self, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size, *, q_data_type,
        kv_data_type, window_left, sm_scale,
    ):  # fmt: skip
        self._plan(indptr, indices, last_page_len, page_size, sm_scale, window_left)
        self.starts = torch.arange(len(indptr))


class _PrefillWrapper(_Pages):
    def plan(
        self, qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, num_qo_heads,
        num_kv_heads, head_dim_qk, page_size, *, causal, q_data_type, kv_data_type, window_left, sm_scale,
    ):  # fmt: skip
        assert causal
        self._plan(
            paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len, page_size, sm_scale, window_left
        )
        self.starts = qo_indptr


class _RaggedWrapper:
    def __init__(self, float_workspace_buffer: Any, kv_layout: str = "NHD") -> None:
        return None

    def plan(
        self, qo_indptr, kv_indptr, num_qo_heads, num_kv_heads, head_dim_qk, head_dim_vo=None, *, causal,
        sm_scale, q_data_type, kv_data_type,
    ):  # fmt: skip
        int32(qo_indptr, kv_indptr)
        self.ends, self.scale = (qo_indptr, kv_indptr), sm_scale

    def run(self, q: Any, k: Any, v: Any) -> Any:
        (a, c) = self.ends
        spans = zip(a, a[1:], c, c[1:], strict=False)
        return torch.cat([attend(q[i:j], k[m:n], v[m:n], self.scale, 0) for i, j, m, n in spans]).to(q.dtype)


class _MlaWrapper:
    def __init__(self, float_workspace_buffer: Any, use_cuda_graph: bool = False, **_: Any) -> None:
        return None

    def plan(
        self, qo_indptr, kv_indptr, kv_indices, kv_len_arr, num_heads, head_dim_ckv, head_dim_kpe, page_size,
        causal, sm_scale, q_data_type, kv_data_type, use_profiler=False,
    ):  # fmt: skip
        int32(qo_indptr, kv_indptr, kv_indices, kv_len_arr)
        self.table = kv_indices.view(len(kv_len_arr), -1)
        self.lengths, self.scale = kv_len_arr, sm_scale

    def run(self, q_nope: Any, q_pe: Any, ckv_cache: Any, kpe_cache: Any) -> Any:
        caches = (torch.cat((ckv_cache, kpe_cache), -1).unsqueeze(2), ckv_cache.unsqueeze(2))
        starts = torch.arange(len(self.lengths) + 1)
        q = torch.cat((q_nope, q_pe), -1)
        return paged(q, caches, self.table, self.lengths, starts, self.scale, 0).to(q.dtype)


def flashinfer() -> Any:
    """Return the library."""
    return SimpleNamespace(
        BatchDecodeWithPagedKVCacheWrapper=lambda space, layout, use_tensor_cores=False: _DecodeWrapper(
            space, layout
        ),
        BatchPrefillWithPagedKVCacheWrapper=_PrefillWrapper,
        BatchPrefillWithRaggedKVCacheWrapper=_RaggedWrapper,
        mla=SimpleNamespace(BatchMLAPagedAttentionWrapper=_MlaWrapper),
    )
