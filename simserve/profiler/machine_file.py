"""`gpu.json` of the device: what its folder must say so that a scenario can name it.

A GPU that simserve ships keeps the vendor's figures. Any other gets what is measured here: memory bandwidth
by a large copy, peaks by a large product. A roofline from measured peaks is as good for interpolation; as an
analytic estimate it is somewhat slow.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from simserve.errors import ProfileError
from simserve.hardware import gpu_names
from simserve.paths import data_dir
from simserve.profiler.device import Device, need_torch
from simserve.profiler.tensors import normal, width_of
from simserve.profiler.timing import measure

COPY_BYTES = {"cuda": 2**31, "cpu": 2**28}
PRODUCT_SIZE = {"cuda": 8192, "cpu": 1024}


def write_machine_file(folder: Path, gpu: str, device: Device, dtypes: tuple[str, ...]) -> Path:
    """Write `<folder>/gpu.json` unless it is there; return its path.

    Raises `ProfileError` if the memory is too full to measure a GPU that does not ship.
    """
    path = folder / "gpu.json"
    if path.is_file():
        return path
    shipped = data_dir("kernels_profile") / gpu / "gpu.json"
    text = (
        shipped.read_text(encoding="utf-8")
        if gpu in gpu_names()
        else json.dumps(_measured(device, dtypes), indent=2)
    )
    folder.mkdir(parents=True, exist_ok=True)
    scratch = folder / ".gpu.json.part"
    scratch.write_text(text + "\n", encoding="utf-8")
    os.replace(scratch, path)
    return path


def _measured(device: Device, dtypes: tuple[str, ...]) -> dict[str, Any]:
    today = datetime.now(UTC).date().isoformat()

    def figure(value: float, how: str) -> dict[str, Any]:
        return {"value": value, "source": f"measured by simserve profile run: {how}", "date": today}

    peaks = {dtype: _flops_per_s(device, dtype) for dtype in dtypes if not dtype.startswith("fp8")}
    peaks.setdefault("bf16", max(peaks.values()))
    return {
        "title": device.title,
        "sm_arch": device.compute_capability,
        "gpus_per_node": max(1, need_torch().cuda.device_count()) if device.is_cuda else 1,
        "hbm": figure(device.free_bytes(), "free memory"),
        "hbm_bandwidth": figure(_bytes_per_s(device), "copy of a large tensor, read and write counted"),
        "peak": {
            dtype: figure(value, f"product of {PRODUCT_SIZE[device.kind]} squared matrices")
            for dtype, value in peaks.items()
        },
        "nvlink": None,
        "pcie": figure(_host_copy_bytes_per_s(device), "copy of a large tensor from the host"),
    }


def _bytes_per_s(device: Device) -> float:
    torch = need_torch()
    elements = min(COPY_BYTES[device.kind], device.free_bytes() // 4) // 4
    source = torch.ones(elements, dtype=torch.float32, device=device.place)
    target = torch.empty_like(source)
    timing = measure(lambda _: target.copy_(source), 1, device, 2.0)
    return 8 * elements * 1e6 / timing.p10_us


def _host_copy_bytes_per_s(device: Device) -> float:
    torch = need_torch()
    elements = COPY_BYTES[device.kind] // 16
    source = torch.ones(elements, dtype=torch.float32, pin_memory=device.is_cuda)
    target = torch.empty(elements, dtype=torch.float32, device=device.place)
    timing = measure(lambda _: target.copy_(source, non_blocking=True), 1, device, 1.0)
    return 4 * elements * 1e6 / timing.p10_us


def _flops_per_s(device: Device, dtype: str) -> float:
    size = PRODUCT_SIZE[device.kind]
    needed, free = 3 * size * size * width_of(dtype), device.free_bytes()
    if needed > free:
        raise ProfileError(
            f"{device.title}: {free / 1e9:.2f} GB are free, its peak is measured with {needed / 1e9:.2f} GB"
        )
    left, right = (normal(device, size, size, dtype=dtype) for _ in range(2))
    timing = measure(lambda _: left @ right, 1, device, 2.0)
    return 2.0 * size**3 * 1e6 / timing.p10_us
