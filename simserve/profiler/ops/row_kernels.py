"""Who computes norms, rotary embedding and activation: torch, our Triton kernels, vLLM's CUDA kernels."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

from simserve.profiler import torch_kernels
from simserve.profiler.device import Device
from simserve.profiler.need import library, need_torch
from simserve.profiler.torch_kernels import EPSILON

FUSED = {
    "triton": ("add_rmsnorm", "rmsnorm", "rope_write", "silu_mul"),
    "vllm": ("add_rmsnorm", "rmsnorm", "silu_mul"),
}
"""Kinds that a library has a kernel of its own for."""


def row_backends(device: Device, kind: str) -> list[str]:
    """Return the backends for a kind."""
    if not device.is_cuda:
        return ["torch"]
    return ["torch", *(name for name, kinds in FUSED.items() if kind in kinds and library(name))]


def row_kernels(backend: str) -> Any:
    """Return an object with the functions of `torch_kernels` by this backend."""
    if backend == "triton":
        return importlib.import_module("simserve.profiler.triton_kernels")
    return _vllm() if backend == "vllm" else torch_kernels


def _vllm() -> Any:
    """Return vLLM's kernels (0.33.0), with outputs allocated as its layers do."""
    torch, ops = need_torch(), importlib.import_module("vllm._custom_ops")

    def rmsnorm(x: Any, weight: Any) -> Any:
        out = torch.empty_like(x)
        ops.rms_norm(out, x, weight, EPSILON)
        return out

    def add_rmsnorm(x: Any, residual: Any, weight: Any) -> tuple[Any, Any]:
        # In place. Timed again and again the residual grows by about one norm's output per call: no value of
        # bf16 or fp16 takes longer than another, and some ten thousand of them are far from infinity in bf16.
        ops.fused_add_rms_norm(x, residual, weight, EPSILON)
        return x, residual

    def silu_mul(x: Any) -> Any:
        out = x.new_empty(x.shape[0], x.shape[1] // 2)
        torch.ops._C.silu_and_mul(out, x)
        return out

    return SimpleNamespace(rmsnorm=rmsnorm, add_rmsnorm=add_rmsnorm, silu_mul=silu_mul)
