"""FlexAttention over a block table: the block mask names physical blocks, and a mask finds their places.

The caches of all sequences are one sequence of keys. The kernel visits the blocks that the block mask lists
for a query block; the mask function turns a key's physical place into its position in the sequence. torch
compiles the kernel (Triton on a GPU, C++ on a CPU), once per kind of shape.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
from collections.abc import Callable
from functools import cache
from math import ceil
from typing import Any, NamedTuple

from simserve.profiler import torch_kernels
from simserve.profiler.device import CannotTime, Device, library, need_torch, needed
from simserve.profiler.ops.paged import Batch, Call, Inputs, Span
from simserve.profiler.tensors import torch_dtype

# Attention by the libraries that engines use: flash-attn 2, vLLM's flash-attn, FlashInfer.
#
# Written against flash-attn 2.8, vLLM 0.33.0 and FlashInfer 0.7; each takes chunks and decoding sequences in
# one call. Block tables, offsets and lengths are int32.

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


QUERIES = 128
"""Queries per block of the mask, torch's default."""
NOWHERE = 1 << 40
"""Position of a key that belongs to another sequence: later than any query."""


def flex_missing(device: Device) -> str:
    """Return why FlexAttention cannot be compiled here, "" if nothing speaks against it."""
    need_torch()
    if importlib.util.find_spec("torch.nn.attention.flex_attention") is None:
        return "this torch has none"
    if device.is_cuda:
        return "" if library("triton") else "it needs triton on a GPU"
    return "" if _cpp_compiler() else "it needs a C++ compiler (g++, clang++ or $CXX) on a CPU"


@cache
def _cpp_compiler() -> str | None:
    return next(filter(None, map(shutil.which, (os.environ.get("CXX", "g++"), "g++", "clang++"))), None)


@cache
def _compiled() -> Callable[..., Any]:
    torch = need_torch()
    # Kinds of shape differ in more ways than the eight that torch compiles before it gives up.
    torch._dynamo.config.recompile_limit = 256
    return torch.compile(_flex().flex_attention, dynamic=True)


def _flex() -> Any:
    return importlib.import_module("torch.nn.attention.flex_attention")


class FlexGroup:
    """Sequences with `new` queries each, ready to be computed."""

    def __init__(self, batch: Batch, table: Any, lengths: Any, new: int) -> None:
        """`table` int64 [sequences, blocks], `lengths` int64 [sequences] with the new tokens."""
        self._scale, self._new = batch.scale, new
        self._mask = _block_mask(batch, table, lengths, new)

    def __call__(self, queries: Any, inputs: Inputs) -> Any:
        """Return attention of queries [sequences * new, heads, d]."""
        shaped = queries.view(-1, self._new, *queries.shape[1:]).transpose(1, 2)
        k, v = (
            cache.flatten(0, 1).transpose(0, 1).unsqueeze(0) for cache in (inputs.k_cache, inputs.v_cache)
        )
        out = _compiled()(shaped, k, v, block_mask=self._mask, scale=self._scale, enable_gqa=True)
        return out.transpose(1, 2).reshape(queries.shape)


def _block_mask(batch: Batch, table: Any, lengths: Any, new: int) -> Any:
    torch = need_torch()
    size, window = batch.block, batch.heads.window
    sequences, blocks = len(table), len(batch.inputs[0].k_cache)
    needed = [ceil(length / size) for length in lengths.tolist()]
    first = torch.full((sequences, blocks), NOWHERE, dtype=torch.int64)
    listed = torch.zeros(sequences, 1, ceil(new / QUERIES), blocks, dtype=torch.int32)
    counts = torch.zeros(sequences, 1, ceil(new / QUERIES), dtype=torch.int32)
    for index, (row, length) in enumerate(zip(table.tolist(), lengths.tolist(), strict=True)):
        own = torch.tensor(row[: needed[index]])
        first[index, own] = torch.arange(len(own)) * size
        for block in range(ceil(new / QUERIES)):
            earliest, latest = (
                length - new + block * QUERIES,
                length - new + min(new, (block + 1) * QUERIES) - 1,
            )
            begin = max(0, earliest - window + 1) // size if window else 0
            seen = own[begin : latest // size + 1]
            listed[index, 0, block, : len(seen)] = seen.to(torch.int32)
            counts[index, 0, block] = len(seen)
    place = table.device
    masked = _mask_function(batch.device, first.to(place), (lengths - new).to(place), size, window)
    return _flex().BlockMask.from_kv_blocks(
        counts.to(place), listed.to(place), BLOCK_SIZE=(QUERIES, size), mask_mod=masked,
        seq_lengths=(new, blocks * size), compute_q_blocks=False,
    )  # fmt: skip


def _mask_function(device: Device, first: Any, before: Any, size: int, window: int) -> Callable[..., Any]:
    """Return which keys a query sees; `first` is the position of each block's first key, `before` that of the
    first query."""
    if device.is_cuda:

        def position(sequence: Any, key: Any) -> Any:
            return first[sequence, key // size] + key % size

    else:
        # The C++ that torch 2.13 makes of the division above does not compile: a table by key does.
        offsets = need_torch().arange(size, device=first.device)
        positions = (first[:, :, None] + offsets).flatten(1)

        def position(sequence: Any, key: Any) -> Any:
            return positions[sequence, key]

    def causal(sequence: Any, head: Any, query: Any, key: Any) -> Any:
        return position(sequence, key) <= query + before[sequence]

    def sliding(sequence: Any, head: Any, query: Any, key: Any) -> Any:
        at, own = position(sequence, key), query + before[sequence]
        return (at <= own) & (at > own - window)

    return sliding if window else causal


# Attention by torch alone: scaled_dot_product_attention on gathered blocks, or FlexAttention on the blocks.
#
# Neither has one kernel for unequal sequences: equal chunks run together, decoding sequences in a call of
# their
# own (padded to the longest on a GPU, one after another on a CPU).


class _Group(NamedTuple):
    """Sequences that one call computes."""

    span: Span | None
    """The chunk that all of them are; None: decoding sequences of any length."""
    rows: Any
    """Their queries among those of the batch, int64."""
    table: Any
    lengths: Any


def torch_call(batch: Batch) -> Call:
    """Return scaled_dot_product_attention on blocks gathered first."""
    decode = torch_kernels.padded_decode if batch.device.is_cuda else torch_kernels.paged_decode
    window = batch.heads.window

    def run(group: _Group, own: Any, inputs: Inputs) -> Any:
        caches = (inputs.k_cache, inputs.v_cache, group.table)
        if group.span is None:
            return decode(own, *caches, group.lengths, batch.scale, window)
        shaped = own.view(len(group.table), group.span.new, *own.shape[1:])
        return torch_kernels.paged_prefill(shaped, *caches, group.span.cached, batch.scale, window).reshape(
            own.shape
        )

    return _grouped(batch, run), "gather + scaled_dot_product_attention"


def flex_call(batch: Batch) -> Call:
    """Return FlexAttention with a block mask that follows the block table."""
    prepared: dict[int, FlexGroup] = {}

    def run(group: _Group, own: Any, inputs: Inputs) -> Any:
        if id(group) not in prepared:
            new = group.span.new if group.span else 1
            prepared[id(group)] = FlexGroup(batch, group.table, group.lengths, new)
        return prepared[id(group)](own, inputs)

    return _grouped(batch, run), "flex_attention over a block table"


def masked_call(batch: Batch) -> Call:
    """Return what transformers' continuous batching does where it has no flash-attn (seen in 5.24).

    The tokens of all sequences are one row of queries, gathered keys and values one row of keys, and a mask
    says who sees whom: the work is that of all queries on all keys of the step.
    """
    torch = need_torch()
    device, heads = batch.inputs[0].q.device, batch.heads
    lengths = batch.lengths.tolist()
    slots = [_slots(row, batch.block)[:length] for row, length in zip(batch.table, lengths, strict=True)]
    keys = torch.cat(slots)
    of_key = [(index, place) for index, length in enumerate(lengths) for place in range(length)]
    of_query = [(i, span.cached + row) for i, span in enumerate(batch.spans) for row in range(span.new)]
    (key_owner, key_at), (query_owner, query_at) = (
        torch.tensor(pairs, device=device).T for pairs in (of_key, of_query)
    )
    seen = (key_owner == query_owner[:, None]) & (key_at <= query_at[:, None])
    if heads.window:
        seen &= key_at > query_at[:, None] - heads.window
    bias = torch.zeros(seen.shape, dtype=batch.inputs[0].q.dtype, device=device)
    bias.masked_fill_(~seen, torch.finfo(bias.dtype).min)

    def call(i: int) -> Any:
        inputs = batch.inputs[i]
        caches = (inputs.k_cache, inputs.v_cache)
        k, v = (cache.flatten(0, 1).index_select(0, keys).transpose(0, 1) for cache in caches)
        # With a mask, heads of a group get copies of their keys.
        k, v = (part.repeat_interleave(heads.q_heads // heads.kv_heads, 0).unsqueeze(0) for part in (k, v))
        out = torch.nn.functional.scaled_dot_product_attention(
            inputs.q.transpose(0, 1).unsqueeze(0), k, v, attn_mask=bias[None, None], scale=batch.scale
        )
        return out[0].transpose(0, 1)

    return call, "gather + scaled_dot_product_attention of all sequences under one mask"


def _slots(blocks: Any, size: int) -> Any:
    return (blocks[:, None] * size + need_torch().arange(size, device=blocks.device)).flatten()


def _grouped(batch: Batch, run: Callable[[_Group, Any, Inputs], Any]) -> Callable[[int], Any]:
    """Return the call that runs every group of the batch and puts their outputs together."""
    groups = _groups(batch)
    if len(groups) == 1:
        return lambda i: run(groups[0], batch.inputs[i].q, batch.inputs[i])

    def call(i: int) -> Any:
        inputs = batch.inputs[i]
        out = need_torch().empty_like(inputs.q)
        for group in groups:
            out[group.rows] = run(group, inputs.q[group.rows], inputs)
        return out

    return call


def _groups(batch: Batch) -> list[_Group]:
    alike: dict[Span | None, list[int]] = {}
    for index, span in enumerate(batch.spans):
        alike.setdefault(None if span.new == 1 and span.cached else span, []).append(index)
    groups = []
    for span, members in alike.items():
        rows = [row for index in members for row in range(batch.starts[index], batch.starts[index + 1])]
        widest = max(ceil((batch.spans[i].new + batch.spans[i].cached) / batch.block) for i in members)
        device = batch.inputs[0].q.device
        index = need_torch().tensor(members, device=device)
        table = batch.table[index][:, :widest].contiguous()
        groups.append(_Group(span, need_torch().tensor(rows, device=device), table, batch.lengths[index]))
    return groups
