"""Who computes MLA: torch, FlashMLA (its own package or vLLM's copy), vLLM's flash-attn, FlashInfer.

Written against FlashMLA of 2026, which plans inside the first call, and its older interface, which took a
plan; vLLM 0.33.0; FlashInfer 0.7. Decode takes q [sequences, heads, latent + rope] and a cache [blocks, 64,
1, latent + rope], and returns [sequences, heads, latent]; prompts are [prompts, heads, tokens, d].
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

from simserve.profiler import torch_kernels
from simserve.profiler.device import Device, library, need_torch, needed
from simserve.profiler.ops.attention_kernels import WORKSPACE_BYTES
from simserve.profiler.shapes import LatentShape
from simserve.profiler.tensors import torch_dtype

FLASH_LATENT = (512, 64)
"""Latent and rope sizes that FlashMLA and FlashInfer have kernels for."""

Call = tuple[Callable[[int], Any], str]


class Decode(NamedTuple):
    """Inputs of absorbed decode: copies of queries and caches, and where each sequence's blocks are."""

    device: Device
    latent: LatentShape
    q: list[Any]
    cache: list[Any]
    table: Any
    lengths: Any
    scale: float


def decode_backends(device: Device, latent: LatentShape, dtype: str, kv_dtype: str) -> list[str]:
    """Return the backends for absorbed decode."""
    found = ["torch"]
    if not device.is_cuda or (latent.kv_lora, latent.rope) != FLASH_LATENT or dtype not in ("bf16", "fp16"):
        return found
    hopper = device.compute_capability == 90
    able = {
        "flash_mla": hopper and kv_dtype == dtype,
        "vllm": hopper and kv_dtype == "fp8",
        "flashinfer": kv_dtype == dtype,
    }
    return found + [name for name, fits in able.items() if fits and library(name)]


def decode_call(backend: str, it: Decode) -> Call:
    """Return the kernel of a backend."""
    return {"torch": _torch, "flash_mla": _flash_mla, "vllm": _vllm_fp8, "flashinfer": _flashinfer}[backend](
        it
    )


def _torch(it: Decode) -> Call:
    run = torch_kernels.absorbed_padded_decode if it.device.is_cuda else torch_kernels.absorbed_decode
    size = it.latent.kv_lora
    return (
        lambda i: run(it.q[i], it.cache[i], it.table, it.lengths, size, it.scale),
        "gather + scaled_dot_product_attention" if it.device.is_cuda else "gather + softmax",
    )


def _flash_mla(it: Decode) -> Call:
    torch, flash_mla = need_torch(), needed("flash_mla")
    used, blocks = it.lengths.to(torch.int32), it.table.to(torch.int32)
    plan, splits = flash_mla.get_mla_metadata(used, it.latent.q_heads, 1)

    def call(i: int) -> Any:
        out, _ = flash_mla.flash_mla_with_kvcache(
            it.q[i].unsqueeze(1), it.cache[i], blocks, used, it.latent.kv_lora, plan, splits,
            softmax_scale=it.scale, causal=True,
        )  # fmt: skip
        return out.squeeze(1)

    return call, "flash_mla_with_kvcache"


def _vllm_fp8(it: Decode) -> Call:
    """Return FlashMLA's dense kernel for an fp8 cache, which vLLM carries on; its queries are fp8, too."""
    torch = need_torch()
    ops = importlib.import_module("vllm.v1.attention.ops.flashmla")
    used, blocks = it.lengths.to(torch.int32), it.table.to(torch.int32)
    plan, splits = ops.get_mla_metadata_dense_fp8(used, it.latent.q_heads, 1)
    queries = [q.to(torch_dtype("fp8")).unsqueeze(1) for q in it.q]
    one = torch.ones(1, device=it.device.place)

    def call(i: int) -> Any:
        out, _ = ops.flash_mla_with_kvcache_fp8(
            q=queries[i], k_cache=it.cache[i], block_table=blocks, cache_seqlens=used,
            head_dim_v=it.latent.kv_lora, tile_scheduler_metadata=plan, num_splits=splits,
            softmax_scale=it.scale, causal=True, descale_q=one, descale_k=one,
        )  # fmt: skip
        return out.squeeze(1)

    return call, "flash_mla_with_kvcache_fp8"


def _flashinfer(it: Decode) -> Call:
    torch, flashinfer = need_torch(), needed("flashinfer")
    sequences, per_sequence = it.table.shape
    place, size = it.device.place, it.cache[0].shape[1]
    space = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=place)
    wrapper = flashinfer.mla.BatchMLAPagedAttentionWrapper(space)
    steps = torch.arange(sequences + 1, dtype=torch.int32, device=place)
    wrapper.plan(
        steps, steps * per_sequence, it.table.flatten().to(torch.int32), it.lengths.to(torch.int32),
        it.latent.q_heads, it.latent.kv_lora, it.latent.rope, size, True, it.scale,
        it.q[0].dtype, it.cache[0].dtype,
    )  # fmt: skip
    lora = it.latent.kv_lora
    queries = [(q[..., :lora].contiguous(), q[..., lora:].contiguous()) for q in it.q]
    caches = [(c[:, :, 0, :lora].contiguous(), c[:, :, 0, lora:].contiguous()) for c in it.cache]
    return lambda i: wrapper.run(*queries[i], *caches[i]), "BatchMLAPagedAttentionWrapper"


class Prefill(NamedTuple):
    """Inputs of expanded prompts: copies of q, k, v; queries come last among the keys."""

    device: Device
    q: list[Any]
    k: list[Any]
    v: list[Any]
    scale: float


def prefill_backends(device: Device, dtype: str) -> list[str]:
    """Return the backends for expanded prompts."""
    if not device.is_cuda or dtype not in ("bf16", "fp16"):
        return ["torch"]
    able = {"vllm": device.compute_capability >= 90, "flashinfer": True}
    return ["torch", *(name for name, fits in able.items() if fits and library(name))]


def prefill_call(backend: str, it: Prefill) -> Call:
    """Return the kernel of a backend; its output is [prompts, heads, tokens, d]."""
    if backend == "torch":
        cached = it.k[0].shape[2] - it.q[0].shape[2]
        return (
            lambda i: torch_kernels.expanded_prefill(it.q[i], it.k[i], it.v[i], cached, it.scale),
            "scaled_dot_product_attention",
        )
    rows = [tuple(_token_rows(part) for part in parts) for parts in zip(it.q, it.k, it.v, strict=True)]
    run, name = (_vllm_prompts if backend == "vllm" else _flashinfer_prompts)(it, *rows[0])
    batch, heads, new = it.q[0].shape[:3]
    return lambda i: run(*rows[i]).view(batch, new, heads, -1).transpose(1, 2), name


def _token_rows(tensor: Any) -> Any:
    """Return [prompts * tokens, heads, d] of [prompts, heads, tokens, d]."""
    return tensor.transpose(1, 2).flatten(0, 1).contiguous()


def _offsets(it: Prefill) -> tuple[Any, Any, int, int]:
    """Return where each prompt's queries and keys begin (int32), and how many there are of each."""
    torch = need_torch()
    new, keys = it.q[0].shape[2], it.k[0].shape[2]
    steps = torch.arange(len(it.q[0]) + 1, dtype=torch.int32, device=it.device.place)
    return steps * new, steps * keys, new, keys


def _vllm_prompts(it: Prefill, q: Any, k: Any, v: Any) -> tuple[Callable[..., Any], str]:
    function = importlib.import_module("vllm.vllm_flash_attn").flash_attn_varlen_func
    utils = importlib.import_module("vllm.v1.attention.backends.fa_utils")
    version = utils.get_flash_attn_version(head_size=q.shape[-1], head_size_v=v.shape[-1]) or 2
    cu_q, cu_k, new, keys = _offsets(it)

    def run(q: Any, k: Any, v: Any) -> Any:
        return function(
            q=q, k=k, v=v, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, max_seqlen_q=new, max_seqlen_k=keys,
            softmax_scale=it.scale, causal=True, fa_version=version,
        )  # fmt: skip

    return run, f"vllm_flash_attn.flash_attn_varlen_func, version {version}"


def _flashinfer_prompts(it: Prefill, q: Any, k: Any, v: Any) -> tuple[Callable[..., Any], str]:
    torch, flashinfer = need_torch(), needed("flashinfer")
    space = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=it.device.place)
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(space, "NHD")
    cu_q, cu_k, _, _ = _offsets(it)
    wrapper.plan(
        cu_q, cu_k, q.shape[1], k.shape[1], q.shape[2], head_dim_vo=v.shape[2], causal=True,
        sm_scale=it.scale, q_data_type=q.dtype, kv_data_type=k.dtype,
    )  # fmt: skip
    return wrapper.run, "BatchPrefillWithRaggedKVCacheWrapper"
