"""Who computes routed experts: torch, vLLM's fused kernel, DeepGEMM's grouped products in fp8.

Written against vLLM 0.33.0 and DeepGEMM 2 (its own package or vLLM's copy). All take x [tokens, hidden], ids
and weights [tokens, picks], up [experts, 2 * inter, hidden] (gate first), down [experts, hidden, inter].
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

from simserve.profiler import torch_kernels
from simserve.profiler.device import Device, library, need_torch, needed
from simserve.profiler.tensors import (
    GROUP,
    by_row_groups,
    by_tensor,
    by_tiles,
    copies,
    from_tiles,
    normal,
    powers_of_two,
)

MASKED_MOST_TOKENS = 256
"""Most tokens for DeepGEMM's masked layout (every expert has room for all): that of decode."""


class Routed(NamedTuple):
    """Inputs of one layer."""

    device: Device
    dtype: str
    """Of the weights; fp8 ones come with scales per tensor, fp8_block with scales per 128 x 128."""
    x: list[Any]
    up: list[Any]
    down: list[Any]
    scales: tuple[Any, Any] | None
    """Of up and down."""
    ids: Any
    weights: Any
    counts: list[int]


class Layer(NamedTuple):
    """A call, its kernel's name, and the weights in float32 for the reference."""

    call: Callable[[int], Any]
    name: str
    plain: tuple[Any, Any]


def expert_backends(device: Device, dtype: str) -> list[str]:
    """Return the backends for weights of this dtype."""
    if not dtype.startswith("fp8"):
        return ["torch", *(["vllm"] if device.is_cuda and library("vllm") else [])]
    able = {"vllm": True, "deep_gemm": dtype == "fp8_block" and device.compute_capability >= 90}
    return [name for name, fits in able.items() if device.is_cuda and fits and library(name)]


def expert_weights(
    device: Device, dtype: str, shape: tuple[int, int, int], scale: float, sets: int
) -> tuple[list[Any], Any]:
    """Return copies of random weights [experts, n, k] in `dtype`, and their scales (None if not fp8)."""
    if not dtype.startswith("fp8"):
        return copies(normal(device, *shape, dtype=dtype, scale=scale), sets), None
    plain = normal(device, *shape, dtype="bf16", scale=scale)
    if dtype == "fp8_block":
        values, scales = by_tiles(plain, powers_of_two(device))
    else:
        values, spread = by_tensor(plain, (1, 2))
        scales = spread.flatten()
    return copies(values, sets), scales


def layer(backend: str, it: Routed) -> Layer:
    """Return the layer by a backend."""
    call, name = {"torch": _torch, "vllm": _vllm, "deep_gemm": _deep_gemm}[backend](it)
    return Layer(call, name, _plain(it))


def _plain(it: Routed) -> tuple[Any, Any]:
    if it.scales is None:
        return it.up[0], it.down[0]
    if it.dtype == "fp8_block":
        return from_tiles(it.up[0], it.scales[0]), from_tiles(it.down[0], it.scales[1])
    up, down = (part[0].float() for part in (it.up, it.down))
    return up * it.scales[0][:, None, None], down * it.scales[1][:, None, None]


Call = tuple[Callable[[int], Any], str]


def has_grouped_product(device: Device, dtype: str) -> bool:
    """Return True if torch has one kernel for all experts here, instead of one product per expert."""
    torch = need_torch()
    known = hasattr(torch.nn.functional, "grouped_mm") or hasattr(torch, "_grouped_mm")
    return known and device.compute_capability >= 90 and dtype == "bf16"


def _torch(it: Routed) -> Call:
    grouped = has_grouped_product(it.device, it.dtype)
    return (
        lambda i: torch_kernels.experts_layer(it.x[i], it.ids, it.weights, it.up[i], it.down[i], grouped),
        "grouped_mm" if grouped else "one product per expert",
    )


def _vllm(it: Routed) -> Call:
    torch = need_torch()
    fused = importlib.import_module("vllm.model_executor.layers.fused_moe").fused_experts
    ids, more = it.ids.to(torch.int32), {}
    if it.scales is not None:
        config = importlib.import_module("vllm.model_executor.layers.fused_moe.config")
        block = [GROUP, GROUP] if it.dtype == "fp8_block" else None
        more = {"quant_config": config.fp8_w8a8_moe_quant_config(*it.scales, block_shape=block)}
    return lambda i: fused(it.x[i], it.up[i], it.down[i], it.weights, ids, **more), "fused_experts"


def _deep_gemm(it: Routed) -> Call:
    return (_masked if len(it.x[0]) <= MASKED_MOST_TOKENS else _contiguous)(it)


def _places(it: Routed, starts: list[int]) -> Any:
    """Return the row of each pick, int64 [tokens * picks], if expert e's picks lie from `starts[e]` on."""
    torch = need_torch()
    flat = it.ids.flatten()
    order = flat.argsort(stable=True)
    firsts = torch.tensor([0, *it.counts]).cumsum(0)[:-1].to(flat.device)
    rank = torch.arange(len(flat), device=flat.device) - firsts[flat[order]]
    place = torch.empty_like(flat)
    place[order] = torch.tensor(starts, device=flat.device)[flat[order]] + rank
    return place


def _contiguous(it: Routed) -> Call:
    """Experts one after another in one matrix, each padded to the kernel's tile of rows: for prompts."""
    torch, deep_gemm = need_torch(), needed("deep_gemm")
    tile = int(deep_gemm.utils.get_mk_alignment_for_contiguous_layout())
    padded = [-(-count // tile) * tile for count in it.counts]
    starts = [sum(padded[:expert]) for expert in range(len(padded))]
    owners = [e for e, (n, room) in enumerate(zip(it.counts, padded, strict=True)) for _ in range(room) if n]
    multiply = deep_gemm.m_grouped_fp8_gemm_nt_contiguous
    index = torch.tensor(owners, dtype=torch.int32, device=it.device.place)

    def product(rows: Any, weights: tuple[Any, Any]) -> Any:
        out = rows[0].new_empty(len(rows[0]), weights[0].shape[1], dtype=torch.bfloat16)
        multiply(rows, weights, out, index)
        return out

    return _two_products(it, _places(it, starts), (len(owners),), product), "m_grouped_fp8_gemm_nt_contiguous"


def _masked(it: Routed) -> Call:
    """Every expert with room for all tokens, and how many rows it really has: for decode."""
    torch, deep_gemm = need_torch(), needed("deep_gemm")
    experts, tokens = len(it.counts), len(it.x[0])
    room = -(-tokens // GROUP) * GROUP
    used = torch.tensor(it.counts, dtype=torch.int32, device=it.device.place)
    expected = max(1, round(sum(it.counts) / experts))

    def product(rows: Any, weights: tuple[Any, Any]) -> Any:
        out = rows[0].new_empty(*rows[0].shape[:2], weights[0].shape[1], dtype=torch.bfloat16)
        deep_gemm.m_grouped_fp8_gemm_nt_masked(rows, weights, out, used, expected)
        return out

    place = _places(it, [expert * room for expert in range(experts)])
    return _two_products(it, place, (experts, room), product), "m_grouped_fp8_gemm_nt_masked"


def _two_products(
    it: Routed, place: Any, shape: tuple[int, ...], product: Callable[[Any, tuple[Any, Any]], Any]
) -> Callable[[int], Any]:
    """Return the layer around a grouped product: quantise, deal out, multiply, activate, multiply, sum up.

    Rows lie at `place` in a buffer of `shape`, which engines work out in a kernel of a few microseconds.
    """
    torch = need_torch()
    assert it.scales is not None
    rounded, rows = powers_of_two(it.device), place.new_zeros(shape).flatten()
    token = torch.arange(len(place), device=place.device) // it.ids.shape[1]
    rows[place] = token
    up_scales, down_scales = it.scales
    shares = it.weights.flatten()[:, None]

    def call(i: int) -> Any:
        values, scales = by_row_groups(it.x[i], rounded)
        dealt = (values.view(torch.uint8)[rows].view(values.dtype), scales[rows])
        made = product(tuple(part.view(*shape, -1) for part in dealt), (it.up[i], up_scales))
        active = torch_kernels.silu_mul(made.flatten(0, -2))
        again = tuple(part.view(*shape, -1) for part in by_row_groups(active, rounded))
        out = product(again, (it.down[i], down_scales)).flatten(0, -2)[place]
        return torch.zeros_like(it.x[i]).index_add_(0, token, (out * shares).to(it.x[i].dtype))

    return call
