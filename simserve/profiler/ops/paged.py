"""Attention over a paged cache, of any mix of prompt chunks and decoding sequences, by what is installed.

Who computes it: torch by itself (`attention_torch`), and the libraries of engines (`attention_libraries`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from typing import Any, NamedTuple

from simserve.profiler import torch_kernels
from simserve.profiler.case import Kernel
from simserve.profiler.device import Device, library, version_of
from simserve.profiler.shapes import HeadShape
from simserve.profiler.tensors import (
    TOLERANCE,
    attention,
    copies,
    finite,
    normal,
    random_order,
    relative_error,
    sampled,
    whole,
    width_of,
)

BLOCK_SIZE = {
    "torch": 16, "flex_attention": 128, "transformers": 64, "vllm": 16, "flash_attn": 256, "flashinfer": 16,
}  # fmt: skip
"""Tokens per block by backend (flash-attn 2 pages need multiples of 256, FlexAttention's blocks have 128)."""


class Span(NamedTuple):
    """New tokens of a sequence, and the tokens that it has in the cache already."""

    new: int
    cached: int


class Inputs(NamedTuple):
    """One copy of the inputs; queries [tokens, q_heads, d] of all sequences in order."""

    q: Any
    k_cache: Any
    v_cache: Any


Call = tuple[Callable[[int], Any], str]
"""What runs on the i-th copy of the inputs, and the kernel's name."""


class Batch:
    """Sequences laid out in a cache."""

    def __init__(
        self,
        device: Device,
        heads: HeadShape,
        dtype: str,
        kv_dtype: str,
        spans: Sequence[Span],
        block: int,
    ) -> None:
        """Make random queries and caches, as many copies as exceed the last-level cache."""
        self.device, self.heads, self.spans, self.block = device, heads, list(spans), block
        self.dtype, self.kv_dtype = dtype, kv_dtype
        self.scale = heads.head_dim**-0.5
        self.starts = [0]
        for span in self.spans:
            self.starts.append(self.starts[-1] + span.new)
        self.needed = [ceil((span.new + span.cached) / block) for span in self.spans]
        blocks = sum(self.needed)
        cache_shape = (blocks, block, heads.kv_heads, heads.head_dim)
        tokens = self.starts[-1]
        cache_bytes = 2 * blocks * block * heads.kv_heads * heads.head_dim * width_of(kv_dtype)
        query_bytes = 2 * tokens * heads.q_heads * heads.head_dim * width_of(dtype)
        self.sets = device.rotation(cache_bytes + query_bytes)
        self.table = whole(device, _block_table(self.needed))
        self.lengths = whole(device, [span.new + span.cached for span in self.spans])
        made = (
            copies(normal(device, tokens, heads.q_heads, heads.head_dim, dtype=dtype), self.sets),
            copies(normal(device, *cache_shape, dtype=kv_dtype), self.sets),
            copies(normal(device, *cache_shape, dtype=kv_dtype), self.sets),
        )
        self.inputs = [Inputs(*parts) for parts in zip(*made, strict=True)]

    def error(self, output: Any) -> float:
        """Return the worst error over some sequences, heads and queries; infinity if there is a NaN."""
        if not finite(output):
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


def _block_table(needed: list[int]) -> list[list[int]]:
    """Return the blocks of each sequence in random order, rows filled up with the sequence's first block."""
    order, widest = random_order(sum(needed)), max(needed)
    table, place = [], 0
    for count in needed:
        own = order[place : place + count]
        table.append(own + own[:1] * (widest - count))
        place += count
    return table


def attention_backends(device: Device, dtype: str, kv_dtype: str) -> list[str]:
    """Return the backends that can run here with such queries and such a cache."""
    from simserve.profiler.ops.attention_kernels import flex_missing

    found = ["torch"]
    if kv_dtype == dtype and not flex_missing(device):
        found.append("flex_attention")
    if kv_dtype == dtype and library("transformers"):
        found.append("transformers")
    if device.is_cuda and dtype in ("bf16", "fp16"):
        able = {"flash_attn": kv_dtype == dtype, "vllm": True, "flashinfer": True}
        found += [name for name, fits in able.items() if fits and library(name)]
    return found


def paged_attention(
    device: Device, backend: str, heads: HeadShape, dtypes: tuple[str, str], spans: Sequence[Span]
) -> Kernel:
    """Return one call of attention for `spans`; `dtypes` are those of activations and of the cache."""
    from simserve.profiler.ops import attention_kernels as libraries
    from simserve.profiler.ops.attention_kernels import flex_call, masked_call, torch_call

    batch = Batch(device, heads, *dtypes, spans, BLOCK_SIZE[backend])
    make = {
        "torch": torch_call, "flex_attention": flex_call, "transformers": masked_call,
        "flash_attn": libraries.flash_attn_call, "vllm": libraries.vllm_call,
        "flashinfer": libraries.flashinfer_call,
    }[backend]  # fmt: skip
    call, name = make(batch)
    # vLLM's kernels turn queries and probabilities into fp8, too, where the cache is.
    rounding = TOLERANCE["fp8"] if backend == "vllm" and dtypes[1] == "fp8" else TOLERANCE[dtypes[0]]
    return Kernel(
        call,
        batch.sets,
        lambda: batch.error(call(0)),
        rounding,
        name,
        version_of(backend),
        rows=batch.starts[-1],
    )
