"""Multi-head latent attention: expanded prompts and absorbed decode; `mla_around` has what runs around them.

Beside the columns of the shipped tables the key holds the latent's sizes, so that models with other sizes can
share a table.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from math import ceil
from typing import Any

from simserve.profiler import torch_kernels
from simserve.profiler.case import Case, Kernel
from simserve.profiler.device import Device
from simserve.profiler.need import version_of
from simserve.profiler.ops.attention import MOST_KV_TOKENS, MOST_PROMPT_TOKENS, grid
from simserve.profiler.ops.mla_kernels import (
    Decode,
    Prefill,
    decode_backends,
    decode_call,
    prefill_backends,
    prefill_call,
)
from simserve.profiler.reference import TOLERANCE, attention, finite, relative_error, sampled
from simserve.profiler.shapes import LatentShape, Shapes
from simserve.profiler.tensors import copies, normal, random_order, whole, width_of

LATENT = ("q_heads", "kv_lora", "rope", "nope", "v_dim")
BLOCK = 64
"""Tokens per block, as FlashMLA wants."""


def _key(shapes: Shapes, kv_dtype: str, latent: LatentShape) -> tuple[tuple[str, Any], ...]:
    return (("dtype", shapes.dtype), ("kv_dtype", kv_dtype), *zip(LATENT, latent, strict=True))


def latent_of(case: Case) -> LatentShape:
    """Return the sizes that a case names."""
    return LatentShape(*(case[name] for name in LATENT))


class MlaPrefill:
    """The `mla_prefill` table: attention of expanded heads, without making keys and values."""

    name = "mla_prefill"
    key_columns = ("dtype", "kv_dtype", *LATENT, "batch", "prefix_len", "q_len")

    def cases(self, shapes: Shapes, device: Device) -> Iterable[Case]:
        """Yield prompts alone and on a cached prefix, by every backend."""
        sizes = shapes.sizes
        batches = tuple(batch for batch in sizes.batches if batch <= 8)
        points = [(level, batch, 0, q_len) for level, batch, q_len in grid(batches, sizes.prompts)]
        points += [(level, 1, prefix, q) for level, prefix, q in grid(sizes.prefixes, sizes.prompts)]
        for kv_dtype, latent in product(shapes.kv_dtypes, shapes.latents):
            for backend in prefill_backends(device, shapes.dtype):
                for level, batch, prefix, q_len in points:
                    if batch * q_len <= MOST_PROMPT_TOKENS[device.kind]:
                        sweep = (("batch", batch), ("prefix_len", prefix), ("q_len", q_len))
                        yield Case(self.name, (*_key(shapes, kv_dtype, latent), *sweep), backend, level)

    def build(self, case: Case, device: Device) -> Kernel:
        """Return the call of a case."""
        latent, dtype = latent_of(case), case["dtype"]
        batch, cached, new = case["batch"], case["prefix_len"], case["q_len"]
        heads, d = latent.q_heads, latent.nope + latent.rope
        keys = cached + new
        elements = batch * heads * (new * d + keys * (d + latent.v_dim) + new * latent.v_dim)
        sets = device.rotation(elements * width_of(dtype))
        q = copies(normal(device, batch, heads, new, d, dtype=dtype), sets)
        k = copies(normal(device, batch, heads, keys, d, dtype=dtype), sets)
        v = copies(normal(device, batch, heads, keys, latent.v_dim, dtype=dtype), sets)
        scale = d**-0.5
        call, name = prefill_call(case.backend, Prefill(device, q, k, v, scale))

        def error() -> float:
            output = call(0)
            if not finite(output):
                return float("inf")
            rows, chosen = sampled(new, 48), sampled(heads, 2)
            place = whole(device, [cached + row for row in rows])
            expected = attention(q[0][-1][chosen][:, rows], k[0][-1][chosen], v[0][-1][chosen], scale, place)
            return relative_error(output[-1][chosen][:, rows], expected)

        return Kernel(call, sets, error, TOLERANCE[dtype], name, version_of(case.backend), rows=batch * new)


class MlaDecode:
    """The `mla_decode` table: absorbed attention over a paged cache of latents."""

    name = "mla_decode"
    key_columns = ("dtype", "kv_dtype", *LATENT, "batch", "kv_len")

    def cases(self, shapes: Shapes, device: Device) -> Iterable[Case]:
        """Yield batches times contexts, by every backend."""
        for kv_dtype, latent in product(shapes.kv_dtypes, shapes.latents):
            for backend in decode_backends(device, latent, shapes.dtype, kv_dtype):
                for level, batch, kv_len in grid(shapes.sizes.batches, shapes.sizes.contexts):
                    if batch * kv_len <= MOST_KV_TOKENS[device.kind]:
                        key = (*_key(shapes, kv_dtype, latent), ("batch", batch), ("kv_len", kv_len))
                        yield Case(self.name, key, backend, level)

    def build(self, case: Case, device: Device) -> Kernel:
        """Return the call of a case."""
        latent, dtype, batch, kv_len = latent_of(case), case["dtype"], case["batch"], case["kv_len"]
        width, kv_dtype = latent.kv_lora + latent.rope, case["kv_dtype"]
        per_sequence = ceil(kv_len / BLOCK)
        blocks = batch * per_sequence
        query_bytes = batch * latent.q_heads * 2 * width * width_of(dtype)
        sets = device.rotation(blocks * BLOCK * width * width_of(kv_dtype) + query_bytes)
        q = copies(normal(device, batch, latent.q_heads, width, dtype=dtype), sets)
        cache = copies(normal(device, blocks, BLOCK, 1, width, dtype=kv_dtype), sets)
        table = whole(device, random_order(blocks)).view(batch, per_sequence)
        lengths = whole(device, [kv_len] * batch)
        scale = (latent.nope + latent.rope) ** -0.5
        call, name = decode_call(case.backend, Decode(device, latent, q, cache, table, lengths, scale))

        def error() -> float:
            output = call(0)
            if not finite(output):
                return float("inf")
            worst = 0.0
            for index in sampled(batch, 3):
                chosen = sampled(latent.q_heads, 4)
                keys = torch_kernels.gathered(cache[0], table[index : index + 1])[0][:, :kv_len]
                keys = keys.expand(len(chosen), -1, -1)
                place = whole(device, [kv_len - 1])
                queries = q[0][index][chosen].unsqueeze(1)
                expected = attention(queries, keys, keys[..., : latent.kv_lora], scale, place)
                worst = max(worst, relative_error(output[index][chosen].unsqueeze(1), expected))
            return worst

        tolerance = TOLERANCE["fp8"] if case.backend == "vllm" else TOLERANCE[dtype]
        return Kernel(call, sets, error, tolerance, name, version_of(case.backend), rows=batch)
