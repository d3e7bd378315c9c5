"""Quantisation to fp8 (e4m3): a scale per tensor, per 128 elements of a row, or per 128 x 128 tile.

The last two are what DeepGEMM and DeepEP take.
"""

from __future__ import annotations

from typing import Any

from simserve.profiler.device import Device
from simserve.profiler.need import CannotTime, need_torch

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
