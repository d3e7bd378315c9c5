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
from typing import TYPE_CHECKING, Any

from simserve.profiler.device import Device
from simserve.profiler.need import library, need_torch

if TYPE_CHECKING:
    from simserve.profiler.ops.paged import Batch, Inputs

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
