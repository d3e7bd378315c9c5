"""Attention by torch alone: scaled_dot_product_attention on gathered blocks, or FlexAttention on the blocks.

Neither has one kernel for unequal sequences: equal chunks run together, decoding sequences in a call of their
own (padded to the longest on a GPU, one after another on a CPU).
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Any, NamedTuple

from simserve.profiler import torch_kernels
from simserve.profiler.need import need_torch
from simserve.profiler.ops.flex import FlexGroup
from simserve.profiler.ops.paged import Batch, Call, Inputs, Span


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
