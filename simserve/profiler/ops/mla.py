"""Multi-head latent attention: expanded prompts and absorbed decode; `mla_around` has what runs around them.

Beside the columns of the shipped tables the key holds the latent's sizes, so that models with other sizes can
share a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product
from math import ceil
from typing import Any, NamedTuple

from simserve.profiler import torch_kernels
from simserve.profiler.case import Case, Kernel, refinement
from simserve.profiler.device import Device, need_torch, version_of
from simserve.profiler.ops.attention import MOST_KV_TOKENS, MOST_PROMPT_TOKENS, grid
from simserve.profiler.ops.mla_kernels import (
    Decode,
    Prefill,
    decode_backends,
    decode_call,
    prefill_backends,
    prefill_call,
)
from simserve.profiler.shapes import LatentShape, Shapes
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

LATENT = ("q_heads", "kv_lora", "rope", "nope", "v_dim")
BLOCK = 64
"""Tokens per block, as FlashMLA wants."""


def _key(shapes: Shapes, kv_dtype: str, latent: LatentShape) -> tuple[tuple[str, Any], ...]:
    return (("dtype", shapes.dtype), ("kv_dtype", kv_dtype), *zip(LATENT, latent[: len(LATENT)], strict=True))


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


# What runs around multi-head latent attention: batched products of decodes, and the keys of prompts.


class MlaBmm:
    """The `mla_bmm` table: batched products into ("pre") and out of ("post") the latent space of decodes.

    Stage "keys" puts the keys of prompts together: latents out of their blocks, made keys beside rotary ones.
    """

    name = "mla_bmm"
    key_columns = ("stage", "dtype", *LATENT, "tokens")

    def cases(self, shapes: Shapes, device: Device) -> Iterable[Case]:
        """Yield every stage at every token count up to the largest decode batch, and some beyond."""
        tokens = shapes.sizes.tokens
        for latent in shapes.latents:
            for stage in ("pre", "post", "keys"):
                for count, level in zip(tokens, refinement(len(tokens)), strict=True):
                    key = (
                        ("stage", stage),
                        ("dtype", shapes.dtype),
                        *zip(LATENT, latent[: len(LATENT)], strict=True),
                        ("tokens", count),
                    )
                    yield Case(self.name, key, "torch", level)

    def build(self, case: Case, device: Device) -> Kernel:
        """Return the call of a case."""
        made = _keys_call(case, device) if case["stage"] == "keys" else _product_call(case, device)
        version, tolerance = version_of("torch"), TOLERANCE[case["dtype"]]
        return Kernel(made.call, made.sets, made.error, tolerance, made.name, version, rows=case["tokens"])


class _Made(NamedTuple):
    """What a `Kernel` is made of."""

    call: Callable[[int], Any]
    sets: int
    error: Callable[[], float]
    name: str


def _product_call(case: Case, device: Device) -> _Made:
    torch = need_torch()
    latent, dtype, tokens = latent_of(case), case["dtype"], case["tokens"]
    inner, outer = (latent.nope, latent.kv_lora) if case["stage"] == "pre" else (latent.kv_lora, latent.v_dim)
    heads = latent.q_heads
    sets = device.rotation(heads * (inner * outer + tokens * (inner + outer)) * width_of(dtype))
    x = copies(normal(device, heads, tokens, inner, dtype=dtype), sets)
    weights = copies(normal(device, heads, inner, outer, dtype=dtype, scale=inner**-0.5), sets)

    def error() -> float:
        rows = sampled(tokens)
        output = torch.bmm(x[0], weights[0])
        if not finite(output):
            return float("inf")
        return relative_error(output[:, rows], torch.bmm(x[0][:, rows].double(), weights[0].double()))

    return _Made(lambda i: torch.bmm(x[i], weights[i]), sets, error, "torch.bmm")


def _keys_call(case: Case, device: Device) -> _Made:
    """What was made of the latents does not rotate: the product before has just written it."""
    torch = need_torch()
    latent, dtype, tokens = latent_of(case), case["dtype"], case["tokens"]
    width, heads, blocks = latent.kv_lora + latent.rope, latent.q_heads, ceil(tokens / BLOCK)
    made_elements = tokens * heads * (latent.nope + latent.v_dim)
    device.rotation(2 * made_elements * width_of(dtype))  # raises if it does not fit
    sets = device.rotation(blocks * BLOCK * width * width_of(dtype))
    cache = copies(normal(device, blocks, BLOCK, 1, width, dtype=dtype), sets)
    table = whole(device, random_order(blocks)).view(1, blocks)
    made = normal(device, tokens, heads, latent.nope + latent.v_dim, dtype=dtype)

    def call(i: int) -> Any:
        latents = torch_kernels.gathered(cache[i], table)[0, 0, :tokens]
        return torch_kernels.expanded_keys(made, latents[:, latent.kv_lora :], latent.nope)

    def error() -> float:
        expected = torch.empty(
            tokens, heads, latent.nope + latent.rope, dtype=torch.float64, device=made.device
        )
        expected[..., : latent.nope] = made[..., : latent.nope].double()
        place = torch.arange(tokens, device=made.device)
        expected[..., latent.nope :] = cache[0][
            table[0, place // BLOCK], place % BLOCK, :, latent.kv_lora :
        ].double()
        return relative_error(call(0), expected)

    return _Made(call, sets, error, "gather + concatenate")
