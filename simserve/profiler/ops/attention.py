"""Attention of heads: prompts with and without a cached prefix, decode, and the batches that no table has.

`attn_decode_uneven` holds decodes of two lengths (a few long ones among short ones), `attn_mixed` one
prompt chunk beside decoding sequences; both are what the rules of `latency.kernels` are judged on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any

from simserve.profiler.case import Case, Kernel, refinement
from simserve.profiler.device import Device
from simserve.profiler.ops.paged import Span, attention_backends, paged_attention
from simserve.profiler.shapes import HeadShape, Shapes

HEADS = ("dtype", "kv_dtype", "q_heads", "kv_heads", "head_dim", "window")
MOST_KV_TOKENS = {"cuda": 4_194_304, "cpu": 32_768}
"""Most tokens in the cache of one call."""
MOST_PROMPT_TOKENS = {"cuda": 32_768, "cpu": 1024}
"""Most new tokens in one call."""
RATIOS = (4, 16)
"""How much longer the long ones of an uneven batch are."""


def _heads_key(shapes: Shapes, kv_dtype: str, heads: HeadShape) -> tuple[tuple[str, Any], ...]:
    return tuple(zip(HEADS, (shapes.dtype, kv_dtype, *heads[: len(HEADS) - 2]), strict=True))


def _heads_of(case: Case) -> HeadShape:
    return HeadShape(*(case[name] for name in HEADS[2:]))


def grid(first: tuple[int, ...], second: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """Yield (level, a, b): a point is as deep as the deeper of its two levels."""
    for a, level_a in zip(first, refinement(len(first)), strict=True):
        for b, level_b in zip(second, refinement(len(second)), strict=True):
            yield max(level_a, level_b), a, b


class _Attention(ABC):
    """What the four tables share."""

    name = ""
    sweep: tuple[str, ...] = ()

    @property
    def key_columns(self) -> tuple[str, ...]:
        """Columns of the table's key."""
        return (*HEADS, *self.sweep)

    def cases(self, shapes: Shapes, device: Device) -> Iterable[Case]:
        """Yield every head shape at every point, by every backend."""
        points = [
            point
            for point in self.points(shapes)
            if self._fits(self.spans(dict(zip(self.sweep, point[1], strict=True))), device)
        ]
        for kv_dtype, heads in product(shapes.kv_dtypes, shapes.heads):
            for backend in attention_backends(device, shapes.dtype, kv_dtype):
                # Kernels that take seconds to compile (on a CPU many) come after those that are there.
                later = (1 if device.is_cuda else 3) if backend == "flex_attention" else 0
                for level, point in points:
                    key = (*_heads_key(shapes, kv_dtype, heads), *zip(self.sweep, point, strict=True))
                    yield Case(self.name, key, backend, level + later)

    def build(self, case: Case, device: Device) -> Kernel:
        """Return the call of a case."""
        spans = self.spans(dict(case.key))
        dtypes = (case["dtype"], case["kv_dtype"])
        return paged_attention(device, case.backend, _heads_of(case), dtypes, spans)

    @abstractmethod
    def points(self, shapes: Shapes) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield (level, values of the sweep columns)."""

    @abstractmethod
    def spans(self, key: dict[str, Any]) -> list[Span]:
        """Return the sequences of a point."""

    def _fits(self, spans: list[Span], device: Device) -> bool:
        return (
            sum(span.new + span.cached for span in spans) <= MOST_KV_TOKENS[device.kind]
            and sum(span.new for span in spans) <= MOST_PROMPT_TOKENS[device.kind]
        )


class Prefill(_Attention):
    """The `attn_prefill` table: `batch` equal chunks."""

    name = "attn_prefill"
    sweep = ("batch", "prefix_len", "q_len")

    def points(self, shapes: Shapes) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield prompts alone, then prompts on a prefix (one and four at a time)."""
        sizes = shapes.sizes
        batches = tuple(batch for batch in sizes.batches if batch <= 8)
        for level, batch, q_len in grid(batches, sizes.prompts):
            yield level, (batch, 0, q_len)
        for level, prefix, q_len in grid(sizes.prefixes, sizes.prompts):
            for batch in (1, 4):
                yield level + (batch > 1), (batch, prefix, q_len)

    def spans(self, key: dict[str, Any]) -> list[Span]:
        """Return the chunks."""
        return [Span(key["q_len"], key["prefix_len"])] * key["batch"]


class Decode(_Attention):
    """The `attn_decode` table: one new token for each of `batch` sequences of `kv_len` tokens."""

    name = "attn_decode"
    sweep = ("batch", "kv_len")

    def points(self, shapes: Shapes) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield batches times contexts."""
        for level, batch, context in grid(shapes.sizes.batches, shapes.sizes.contexts):
            yield level, (batch, context)

    def spans(self, key: dict[str, Any]) -> list[Span]:
        """Return the sequences; `kv_len` counts the new token."""
        return [Span(1, key["kv_len"] - 1)] * key["batch"]


class Uneven(_Attention):
    """`attn_decode_uneven`: `long` of `batch` sequences are `ratio` times as long; `kv_len` is the mean."""

    name = "attn_decode_uneven"
    sweep = ("batch", "long", "ratio", "kv_len")

    def points(self, shapes: Shapes) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield one or a quarter of the sequences being long."""
        batches = tuple(batch for batch in shapes.sizes.batches if batch >= 4)[::2]
        for level, batch, context in grid(batches, shapes.sizes.contexts[2::2]):
            for ratio in RATIOS:
                for many in sorted({1, batch // 4}):
                    yield level, (batch, many, ratio, context)

    def spans(self, key: dict[str, Any]) -> list[Span]:
        """Return long and short sequences whose mean is `kv_len` (to the nearest token)."""
        batch, many, ratio, mean = (key[name] for name in self.sweep)
        short = max(2, round(mean * batch / (batch - many + many * ratio)))
        return [Span(1, short * ratio - 1)] * many + [Span(1, short - 1)] * (batch - many)


class Mixed(_Attention):
    """`attn_mixed`: a chunk of `q_len` tokens after `prefix_len` beside `batch` sequences of `kv_len`."""

    name = "attn_mixed"
    sweep = ("batch", "kv_len", "prefix_len", "q_len")

    def points(self, shapes: Shapes) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield a thinned grid of all four."""
        sizes = shapes.sizes
        for level, batch, context in grid(sizes.batches[2::2], sizes.contexts[2::2]):
            for deeper, prefix, q_len in grid((0, *sizes.prefixes[1::2]), sizes.prompts[1::2]):
                yield max(level, deeper) + 1, (batch, context, prefix, q_len)

    def spans(self, key: dict[str, Any]) -> list[Span]:
        """Return decoding sequences first, the chunk last, as vLLM orders them."""
        decodes = [Span(1, key["kv_len"] - 1)] * key["batch"]
        return [*decodes, Span(key["q_len"], key["prefix_len"])]
