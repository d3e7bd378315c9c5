"""Attention over a paged cache, of any mix of prompt chunks and decoding sequences, by what is installed.

torch alone has no kernel for unequal sequences: it runs chunks and decoding sequences in calls of their own
and pads the block table. flash-attn and vLLM's build of it take all in one call, as engines do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from typing import Any, NamedTuple

from simserve.profiler import torch_kernels
from simserve.profiler.case import Kernel
from simserve.profiler.device import Device
from simserve.profiler.need import library, need_torch, version_of
from simserve.profiler.reference import TOLERANCE, attention, relative_error, sampled
from simserve.profiler.shapes import HeadShape
from simserve.profiler.tensors import copies, normal, random_order, whole, width_of

BLOCK_SIZE = {"torch": 16, "vllm": 16, "flash_attn": 256, "flashinfer": 16}
"""Tokens per block by backend (flash-attn 2 pages need multiples of 256)."""


class Span(NamedTuple):
    """New tokens of a sequence, and the tokens that it has in the cache already."""

    new: int
    cached: int


def attention_backends(device: Device, decode_only: bool) -> list[str]:
    """Return the backends that can run here."""
    found = ["torch"]
    if device.is_cuda:
        found += [name for name in ("flash_attn", "vllm") if library(name)]
        if decode_only and library("flashinfer"):
            found.append("flashinfer")
    return found


class _Inputs(NamedTuple):
    """One copy of the inputs; queries [tokens, q_heads, d] of all sequences in order."""

    q: Any
    k_cache: Any
    v_cache: Any


class _Batch:
    """Sequences laid out in a cache."""

    def __init__(self, device: Device, heads: HeadShape, dtype: str, spans: Sequence[Span], block: int):
        self.device, self.heads, self.spans, self.block = device, heads, list(spans), block
        self.scale = heads.head_dim**-0.5
        self.starts = [0]
        for span in self.spans:
            self.starts.append(self.starts[-1] + span.new)
        needed = [ceil((span.new + span.cached) / block) for span in self.spans]
        blocks = sum(needed)
        cache_shape = (blocks, block, heads.kv_heads, heads.head_dim)
        tokens = self.starts[-1]
        cache_elements = blocks * block * heads.kv_heads * heads.head_dim
        elements = 2 * cache_elements + 2 * tokens * heads.q_heads * heads.head_dim
        self.sets = device.rotation(elements * width_of(dtype))
        order = random_order(blocks)
        widest = max(needed)
        table, place = [], 0
        for count in needed:
            own = order[place : place + count]
            table.append(own + own[:1] * (widest - count))
            place += count
        self.table = whole(device, table)
        self.lengths = whole(device, [span.new + span.cached for span in self.spans])
        made = (
            copies(normal(device, tokens, heads.q_heads, heads.head_dim, dtype=dtype), self.sets),
            copies(normal(device, *cache_shape, dtype=dtype), self.sets),
            copies(normal(device, *cache_shape, dtype=dtype), self.sets),
        )
        self.inputs = [_Inputs(*parts) for parts in zip(*made, strict=True)]

    def error(self, output: Any) -> float:
        """Return the worst error over some sequences, heads and queries."""
        torch = need_torch()
        if not bool(torch.isfinite(output.float()).all()):
            return float("inf")
        heads, inputs, worst = self.heads, self.inputs[0], 0.0
        group = heads.q_heads // heads.kv_heads
        for index in sampled(len(self.spans), 3):
            span = self.spans[index]
            keys, values = (
                torch_kernels.gathered(cache, self.table[index : index + 1])[0][:, : span.new + span.cached]
                for cache in (inputs.k_cache, inputs.v_cache)
            )
            rows, chosen = sampled(span.new, 48), sampled(heads.q_heads, 2)
            own = slice(self.starts[index], self.starts[index + 1])
            kv = [head // group for head in chosen]
            expected = attention(
                inputs.q[own][rows][:, chosen].transpose(0, 1),
                keys[kv],
                values[kv],
                self.scale,
                whole(self.device, [span.cached + row for row in rows]),
                heads.window,
            )
            worst = max(worst, relative_error(output[own][rows][:, chosen].transpose(0, 1), expected))
        return worst


def paged_attention(
    device: Device, backend: str, heads: HeadShape, dtype: str, spans: Sequence[Span]
) -> Kernel:
    """Return one call of attention for `spans`."""
    batch = _Batch(device, heads, dtype, spans, BLOCK_SIZE[backend])
    call, name = {"torch": _torch, "flash_attn": _flash_attn, "vllm": _vllm, "flashinfer": _flashinfer}[
        backend
    ](batch)
    return Kernel(call, batch.sets, lambda: batch.error(call(0)), TOLERANCE[dtype], name, version_of(backend))


Call = tuple[Callable[[int], Any], str]


def _torch(batch: _Batch) -> Call:
    torch = need_torch()
    heads, spans = batch.heads, batch.spans
    alike: dict[Span | None, list[int]] = {}
    for index, span in enumerate(spans):
        alike.setdefault(None if span.new == 1 and span.cached else span, []).append(index)
    groups = []
    for span, members in alike.items():
        rows = [row for index in members for row in range(batch.starts[index], batch.starts[index + 1])]
        widest = max(ceil((spans[i].new + spans[i].cached) / batch.block) for i in members)
        index = whole(batch.device, members)
        everyone = rows == list(range(batch.starts[-1]))
        groups.append(
            (
                span,
                whole(batch.device, rows),
                batch.table[index][:, :widest].contiguous(),
                batch.lengths[index],
                everyone,
            )
        )

    def call(i: int) -> Any:
        q, k_cache, v_cache = batch.inputs[i]
        parts = []
        for span, rows, table, lengths, everyone in groups:
            own = q if everyone else q[rows]
            if span is None:
                out = torch_kernels.paged_decode(
                    own, k_cache, v_cache, table, lengths, batch.scale, heads.window
                )
            else:
                shaped = own.view(len(table), span.new, heads.q_heads, heads.head_dim)
                out = torch_kernels.paged_prefill(
                    shaped, k_cache, v_cache, table, span.cached, batch.scale, heads.window
                ).reshape(own.shape)
            if everyone:
                return out
            parts.append((rows, out))
        whole_out = torch.empty_like(q)
        for rows, out in parts:
            whole_out[rows] = out
        return whole_out

    return call, "gather + scaled_dot_product_attention"


def _cumulative(batch: _Batch, sizes: list[int]) -> Any:
    torch = need_torch()
    ends = torch.tensor([0, *sizes]).cumsum(0)
    return ends.to(device=batch.device.kind, dtype=torch.int32)


def _flash_attn(batch: _Batch) -> Call:
    torch = need_torch()
    function = library("flash_attn").flash_attn_varlen_func  # type: ignore[union-attr]
    new, total = [s.new for s in batch.spans], [s.new + s.cached for s in batch.spans]
    cu_q, cu_k = _cumulative(batch, new), _cumulative(batch, total)
    table = batch.table.to(torch.int32)
    window = (batch.heads.window - 1, 0) if batch.heads.window else (-1, -1)

    def call(i: int) -> Any:
        q, k_cache, v_cache = batch.inputs[i]
        return function(
            q, k_cache, v_cache, cu_q, cu_k, max(new), max(total),
            softmax_scale=batch.scale, causal=True, window_size=window, block_table=table,
        )  # fmt: skip

    return call, "flash_attn_varlen_func"


def _vllm(batch: _Batch) -> Call:
    torch = need_torch()
    import importlib

    function = importlib.import_module("vllm.vllm_flash_attn").flash_attn_varlen_func
    new, total = [s.new for s in batch.spans], [s.new + s.cached for s in batch.spans]
    cu_q, used = _cumulative(batch, new), batch.lengths.to(torch.int32)
    table = batch.table.to(torch.int32)
    window = [batch.heads.window - 1, 0] if batch.heads.window else [-1, -1]

    def call(i: int) -> Any:
        q, k_cache, v_cache = batch.inputs[i]
        return function(
            q=q, k=k_cache, v=v_cache, cu_seqlens_q=cu_q, max_seqlen_q=max(new), seqused_k=used,
            max_seqlen_k=max(total), softmax_scale=batch.scale, causal=True, window_size=window,
            block_table=table,
        )  # fmt: skip

    return call, "vllm_flash_attn.flash_attn_varlen_func"


def _flashinfer(batch: _Batch) -> Call:
    torch = need_torch()
    flashinfer = library("flashinfer")
    if any(span.new != 1 for span in batch.spans) or batch.heads.window:
        raise NotImplementedError("flashinfer is measured for decode without a window only")
    space = torch.empty(128 * 2**20, dtype=torch.uint8, device=batch.device.kind)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(space, "NHD")  # type: ignore[union-attr]
    needed = [ceil((span.new + span.cached) / batch.block) for span in batch.spans]
    last = [(span.new + span.cached - 1) % batch.block + 1 for span in batch.spans]
    indices = torch.cat([row[:count] for row, count in zip(batch.table, needed, strict=True)])
    sample = batch.inputs[0]
    wrapper.plan(
        _cumulative(batch, needed), indices.to(torch.int32),
        torch.tensor(last, dtype=torch.int32, device=batch.device.kind),
        batch.heads.q_heads, batch.heads.kv_heads, batch.heads.head_dim, batch.block,
        q_data_type=sample.q.dtype, kv_data_type=sample.k_cache.dtype,
    )  # fmt: skip
    return lambda i: wrapper.run(batch.inputs[i].q, batch.inputs[i][1:]), "BatchDecodeWithPagedKVCache"
