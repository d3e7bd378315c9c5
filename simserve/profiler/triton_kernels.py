"""Norms, rotary embedding and activation as one Triton kernel each, a program per row, as engines fuse them.

torch's own take several launches and trips to memory. Importing this needs triton; with TRITON_INTERPRET=1
the kernels run on a CPU, which is how the tests check them.
"""

from __future__ import annotations

from typing import Any

import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]

from simserve.profiler.device import need_torch
from simserve.profiler.torch_kernels import EPSILON


@triton.jit
def _norm_kernel(x, residual, weight, out, total, width, eps, ADD: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * width
    place = tl.arange(0, BLOCK)
    inside = place < width
    value = tl.load(x + row + place, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        value += tl.load(residual + row + place, mask=inside, other=0.0).to(tl.float32)
        tl.store(total + row + place, value, mask=inside)
    scale = 1.0 / tl.sqrt(tl.sum(value * value, 0) / width + eps)
    factor = tl.load(weight + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row + place, value * scale * factor, mask=inside)


@triton.jit
def _silu_mul_kernel(x, out, half, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < half
    gate = tl.load(x + row * 2 * half + place, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(x + row * 2 * half + half + place, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * half + place, gate / (1.0 + tl.exp(-gate)) * value, mask=inside)


@triton.jit
def _rope_write_kernel(
    x, cos, sin, written, cache, slots, out, pairs, d, kept, BLOCK: tl.constexpr, KEPT: tl.constexpr
):
    token = tl.program_id(0).to(tl.int64)
    pair = tl.arange(0, BLOCK)
    inside = pair < pairs
    half = d // 2
    first = token * 2 * pairs + pair // half * d + pair % half
    angle = token * half + pair % half
    c = tl.load(cos + angle, mask=inside, other=0.0).to(tl.float32)
    s = tl.load(sin + angle, mask=inside, other=0.0).to(tl.float32)
    a = tl.load(x + first, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(x + first + half, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + first, a * c - b * s, mask=inside)
    tl.store(out + first + half, b * c + a * s, mask=inside)
    place = tl.arange(0, KEPT)
    row = tl.load(written + token * kept + place, mask=place < kept)
    tl.store(cache + tl.load(slots + token) * kept + place, row, mask=place < kept)


def _launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: int) -> None:
    """Run a program per point of the grid (type checkers take a jitted kernel for a plain function)."""
    kernel[grid](*arguments, **constants)


def rmsnorm(x: Any, weight: Any) -> Any:
    """Return x [rows, width] over its root mean square, times a weight."""
    out = need_torch().empty_like(x)
    _norm(x, x, weight, out, x, add=False)
    return out


def add_rmsnorm(x: Any, residual: Any, weight: Any) -> tuple[Any, Any]:
    """Return (norm of x + residual, x + residual)."""
    out, total = need_torch().empty_like(x), need_torch().empty_like(x)
    _norm(x, residual, weight, out, total, add=True)
    return out, total


def _norm(x: Any, residual: Any, weight: Any, out: Any, total: Any, add: bool) -> None:
    rows, width = x.shape
    block = int(triton.next_power_of_2(width))
    _launch(_norm_kernel, (rows,), x, residual, weight, out, total, width, EPSILON, ADD=add, BLOCK=block)


def silu_mul(x: Any) -> Any:
    """Return silu(first half) * second half of each row."""
    rows, width = x.shape
    out = x.new_empty(rows, width // 2)
    grid = (rows, -(-width // 2048))
    _launch(_silu_mul_kernel, grid, x, out, width // 2, BLOCK=1024)
    return out


def rope_write(x: Any, cos: Any, sin: Any, written: Any, cache: Any, slots: Any) -> Any:
    """Return x [tokens, heads, d] rotated, having put `written` into rows `slots` of the cache."""
    out = need_torch().empty_like(x)
    tokens, heads, d = x.shape
    pairs, kept = heads * d // 2, written.shape[1]
    _launch(
        _rope_write_kernel, (tokens,), x, cos, sin, written, cache, slots, out, pairs, d, kept,
        BLOCK=int(triton.next_power_of_2(pairs)), KEPT=int(triton.next_power_of_2(max(1, kept))),
    )  # fmt: skip
    return out
