"""Random inputs on the device that is measured."""

from __future__ import annotations

from typing import Any

from simserve.profiler.device import DTYPES, Device
from simserve.profiler.need import need_torch


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
