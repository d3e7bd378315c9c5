"""Random inputs on the device that is measured."""

from __future__ import annotations

import math
from typing import Any

from simserve.profiler.device import DTYPES, CannotTime, Device, need_torch


def torch_dtype(dtype: str) -> Any:
    """Return torch's dtype of ours ("bf16", "fp16", "fp32", "fp8")."""
    torch = need_torch()
    return torch.float8_e4m3fn if dtype.startswith("fp8") else getattr(torch, DTYPES[dtype])


def width_of(dtype: str) -> int:
    """Return the bytes of one element."""
    return 1 if dtype.startswith("fp8") else (4 if dtype == "fp32" else 2)


def normal(device: Device, *shape: int, dtype: str, scale: float = 1.0) -> Any:
    """Return normally distributed numbers with standard deviation `scale`."""
    torch, wanted = need_torch(), torch_dtype(dtype)
    drawn = torch.bfloat16 if dtype.startswith("fp8") else wanted
    return torch.empty(shape, device=device.place, dtype=drawn).normal_(0.0, scale).to(wanted)


def copies(tensor: Any, count: int) -> list[Any]:
    """Return the tensor and copies of it, `count` in all, each in memory of its own."""
    return [tensor, *(tensor.clone() for _ in range(count - 1))]


def whole(device: Device, values: Any) -> Any:
    """Return whole numbers as an int64 tensor on the device."""
    torch = need_torch()
    return torch.as_tensor(values, dtype=torch.int64, device=device.place)


def random_order(count: int) -> list[int]:
    """Return 0 .. count - 1 in random order (blocks of a cache are never in order)."""
    return need_torch().randperm(count).tolist()


# Quantisation to fp8 (e4m3): a scale per tensor, per 128 elements of a row, or per 128 x 128 tile.
#
# The last two are what DeepGEMM and DeepEP take.

LARGEST = 448.0
"""Largest finite float8_e4m3fn."""
GROUP = 128


def powers_of_two(device: Device) -> bool:
    """Return True if this GPU's DeepGEMM takes scales that are powers of two (Blackwell)."""
    return device.compute_capability >= 100


def by_tensor(x: Any, axes: tuple[int, ...] | None = None) -> tuple[Any, Any]:
    """Return x in fp8, and float32 scales: one, or one for all elements along `axes` (kept as 1)."""
    scale = (x.abs().amax() if axes is None else x.abs().amax(axes, keepdim=True)).float() / LARGEST
    return (x / scale).to(need_torch().float8_e4m3fn), scale


def _quantised(groups: Any, axes: tuple[int, ...], powers_of_two: bool) -> tuple[Any, Any]:
    torch = need_torch()
    scales = groups.abs().amax(axes, keepdim=True).clamp(min=1e-4) / LARGEST
    if powers_of_two:
        # Blackwell's matrix units take scales of eight bits of exponent (UE8M0).
        scales = torch.exp2(torch.ceil(torch.log2(scales)))
    return (groups / scales).to(torch.float8_e4m3fn), scales


def by_row_groups(x: Any, powers_of_two: bool) -> tuple[Any, Any]:
    """Return x [rows, k] in fp8, and float32 scales [rows, k / 128].

    Raises `CannotTime` if there is no whole number of groups.
    """
    if x.shape[-1] % GROUP:
        raise CannotTime(
            f"fp8 with a scale per {GROUP} elements needs rows divisible by it, got {x.shape[-1]}"
        )
    values, scales = _quantised(x.float().unflatten(-1, (-1, GROUP)), (-1,), powers_of_two)
    return values.flatten(-2), scales.squeeze(-1)


def by_tiles(weight: Any, powers_of_two: bool) -> tuple[Any, Any]:
    """Return weights [..., n, k] in fp8, and float32 scales [..., n / 128, k / 128].

    Raises `CannotTime` if there is no whole number of tiles.
    """
    n, k = weight.shape[-2:]
    if n % GROUP or k % GROUP:
        raise CannotTime(f"fp8_block needs sizes divisible by {GROUP}, got weights of {n} x {k}")
    tiles = weight.float().unflatten(-1, (-1, GROUP)).unflatten(-3, (-1, GROUP))
    values, scales = _quantised(tiles, (-3, -1), powers_of_two)
    return values.flatten(-2).flatten(-3, -2), scales.squeeze(-1).squeeze(-2)


def from_tiles(values: Any, scales: Any) -> Any:
    """Return the float32 weights that `by_tiles` stands for."""
    spread = scales.repeat_interleave(GROUP, -2).repeat_interleave(GROUP, -1)
    return values.float() * spread


def from_row_groups(values: Any, scales: Any) -> Any:
    """Return the float32 rows that `by_row_groups` stands for."""
    return values.float() * scales.repeat_interleave(GROUP, -1)


# Is a kernel's output right? Compared with float64 before anything is timed.
#
# The output's memory is poisoned with NaN first where the allocator allows it, so that a kernel which leaves
# a
# part unwritten is caught; then the output, or a sample of its rows, is compared with a plain float64
# computation.

TOLERANCE = {"fp32": 1e-4, "fp16": 5e-3, "bf16": 2e-2, "fp8": 6e-2, "fp8_block": 6e-2}
"""Largest |output - reference| / |reference| (Euclidean norms): a few units of the dtype's rounding; for fp8
the rounding of activations, which the kernel includes."""
SAMPLED_ROWS = 64


def relative_error(output: Any, reference: Any) -> float:
    """Return |output - reference| / |reference|; infinity if either has NaN, or their shapes differ."""
    torch = need_torch()
    if output.shape != reference.shape:
        return math.inf
    wide = output.to(torch.float64)
    if not bool(torch.isfinite(wide).all() and torch.isfinite(reference).all()):
        return math.inf
    norm = float(torch.linalg.vector_norm(reference))
    return float(torch.linalg.vector_norm(wide - reference)) / max(norm, 1e-30)


def finite(output: Any) -> bool:
    """Return False if a part of the output is NaN or infinite: rows that are not compared count, too."""
    return bool(need_torch().isfinite(output.float()).all())


def sampled(count: int, most: int = SAMPLED_ROWS) -> list[int]:
    """Return up to `most` indices below `count`, evenly spread, first and last among them."""
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})


def poison_for(output: Any) -> None:
    """Leave NaN (or the largest whole number) in freed memory of these tensors' sizes.

    The allocator hands such memory out next, so that a kernel which leaves a part of its output unwritten is
    caught. torch's allocator for GPUs does so always, a CPU's nearly always.
    """
    torch = need_torch()
    parts = output if isinstance(output, tuple | list) else (output,)
    tensors = [part for part in parts if isinstance(part, torch.Tensor)]
    fresh = [torch.empty(one.shape, dtype=one.dtype, device=one.device) for one in tensors]
    for one in fresh:
        if one.dtype.is_floating_point:
            one.copy_(torch.full((1,), math.nan, dtype=torch.float32))
        else:
            one.fill_(torch.iinfo(one.dtype).max)


def attention(queries: Any, keys: Any, values: Any, scale: float, place: Any, window: int = 0) -> Any:
    """Return causal attention in float64: [h, q, dv] from [h, q, d], [h, k, d], [h, k, dv].

    `place` (int64 [q]) are the positions of the queries among the keys; a query sees the keys up to its
    own, at most `window` of them (0: all).
    """
    torch = need_torch()
    q, k, v = (tensor.to(torch.float64) for tensor in (queries, keys, values))
    scores = torch.einsum("hqd,hkd->hqk", q, k) * scale
    place = place[:, None]
    key = torch.arange(k.shape[1], device=q.device)[None, :]
    hidden = key > place
    if window:
        hidden |= key <= place - window
    return torch.einsum("hqk,hkd->hqd", torch.softmax(scores.masked_fill(hidden, -math.inf), -1), v)
