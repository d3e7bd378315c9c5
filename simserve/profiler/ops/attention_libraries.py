"""Attention by the libraries that engines use: flash-attn 2, vLLM's flash-attn, FlashInfer.

Written against flash-attn 2.8, vLLM 0.33.0 and FlashInfer 0.7; each takes chunks and decoding sequences in
one call. Block tables, offsets and lengths are int32.
"""

from __future__ import annotations

import importlib
from typing import Any

from simserve.profiler.need import CannotTime, need_torch, needed
from simserve.profiler.ops.paged import Batch, Call
from simserve.profiler.tensors import torch_dtype

WORKSPACE_BYTES = 256 * 2**20
"""FlashInfer's scratch memory (vLLM 0.33 gives it more; decode of 512 sequences needs less than half)."""


def _ends(batch: Batch, sizes: list[int]) -> Any:
    """Return 0 and the running sum of `sizes`, int32."""
    torch = need_torch()
    return torch.tensor([0, *sizes]).cumsum(0).to(device=batch.device.place, dtype=torch.int32)


def flash_attn_call(batch: Batch) -> Call:
    """Return flash-attn 2 on a paged cache."""
    function = needed("flash_attn").flash_attn_varlen_func
    new, total = [s.new for s in batch.spans], [s.new + s.cached for s in batch.spans]
    cu_q, cu_k = _ends(batch, new), _ends(batch, total)
    table = batch.table.to(need_torch().int32)
    window = (batch.heads.window - 1, 0) if batch.heads.window else (-1, -1)

    def call(i: int) -> Any:
        q, k_cache, v_cache = batch.inputs[i]
        return function(
            q, k_cache, v_cache, cu_q, cu_k, max(new), max(total),
            softmax_scale=batch.scale, causal=True, window_size=window, block_table=table,
        )  # fmt: skip

    return call, "flash_attn_varlen_func"


def vllm_call(batch: Batch) -> Call:
    """Return vLLM's build of flash-attn in the version that vLLM chooses for this GPU (3 on Hopper)."""
    torch = need_torch()
    function = importlib.import_module("vllm.vllm_flash_attn").flash_attn_varlen_func
    chosen = importlib.import_module("vllm.v1.attention.backends.fa_utils").get_flash_attn_version() or 2
    new, total = [s.new for s in batch.spans], [s.new + s.cached for s in batch.spans]
    cu_q, used = _ends(batch, new), batch.lengths.to(torch.int32)
    table = batch.table.to(torch.int32)
    window = [batch.heads.window - 1, 0] if batch.heads.window else [-1, -1]
    more: dict[str, Any] = {}
    queries = [inputs.q for inputs in batch.inputs]
    if batch.kv_dtype == "fp8":
        if chosen < 3:
            raise CannotTime(f"flash-attn {chosen} takes no fp8 cache")
        queries = [q.to(torch_dtype("fp8")) for q in queries]
        ones = torch.ones(len(batch.spans), batch.heads.kv_heads, device=batch.device.place)
        more = {"q_descale": ones, "k_descale": ones, "v_descale": ones}

    def call(i: int) -> Any:
        _, k_cache, v_cache = batch.inputs[i]
        return function(
            q=queries[i], k=k_cache, v=v_cache, cu_seqlens_q=cu_q, max_seqlen_q=max(new), seqused_k=used,
            max_seqlen_k=max(total), softmax_scale=batch.scale, causal=True, window_size=window,
            block_table=table, fa_version=chosen, **more,
        )  # fmt: skip

    return call, f"vllm_flash_attn.flash_attn_varlen_func, version {chosen}"


def flashinfer_call(batch: Batch) -> Call:
    """Return FlashInfer's wrapper for decode if every sequence has one query, else the one for prompts."""
    torch, flashinfer = need_torch(), needed("flashinfer")
    heads, place = batch.heads, batch.device.place
    space = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=place)
    pages = torch.cat([row[:count] for row, count in zip(batch.table, batch.needed, strict=True)])
    last = [(span.new + span.cached - 1) % batch.block + 1 for span in batch.spans]
    paging = (
        _ends(batch, batch.needed),
        pages.to(torch.int32),
        torch.tensor(last, dtype=torch.int32, device=place),
        heads.q_heads, heads.kv_heads, heads.head_dim, batch.block,
    )  # fmt: skip
    more: dict[str, Any] = {
        "q_data_type": torch_dtype(batch.dtype), "kv_data_type": torch_dtype(batch.kv_dtype),
        "window_left": heads.window - 1 if heads.window else -1, "sm_scale": batch.scale,
    }  # fmt: skip
    if all(span.new == 1 for span in batch.spans):
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
            space, "NHD", use_tensor_cores=heads.q_heads >= 4 * heads.kv_heads
        )
        wrapper.plan(*paging, **more)
        name = "BatchDecodeWithPagedKVCacheWrapper"
    else:
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(space, "NHD")
        wrapper.plan(_ends(batch, [span.new for span in batch.spans]), *paging, causal=True, **more)
        name = "BatchPrefillWithPagedKVCacheWrapper"
    return lambda i: wrapper.run(batch.inputs[i].q, (batch.inputs[i].k_cache, batch.inputs[i].v_cache)), name
