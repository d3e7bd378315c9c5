"""Kernels that only move memory: norms, rotary embedding with the write to the cache, activation, ends.

The pack's columns are kind, dtype, width and tokens; `written` (elements put into the cache per row) tells
rotary rows apart, and `row_bytes` says what a row moves, as the step latency counts it. Inputs do not
rotate: in a model the kernel before has just written them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, NamedTuple

from simserve.profiler import torch_kernels
from simserve.profiler.case import Case, Kernel, refinement
from simserve.profiler.device import Device, library, need_torch, version_of
from simserve.profiler.shapes import Shapes
from simserve.profiler.tensors import TOLERANCE, normal, relative_error, width_of
from simserve.profiler.torch_kernels import EPSILON

# Who computes norms, rotary embedding and activation: torch, our Triton kernels, vLLM's CUDA kernels.

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


PER_SEQUENCE = ("argmax",)
"""Kinds that run once per sequence, not per token."""
ROPE_DIM = 64
TOPK = 8


class Elementwise:
    """The `elementwise` table."""

    name = "elementwise"
    key_columns = ("kind", "dtype", "width", "written", "tokens")

    def cases(self, shapes: Shapes, device: Device) -> Iterable[Case]:
        """Yield every kind and width at every row count."""
        for row in shapes.rows:
            tokens = shapes.sizes.batches if row.kind in PER_SEQUENCE else shapes.sizes.tokens
            for count, level in zip(tokens, refinement(len(tokens)), strict=True):
                values = (row.kind, shapes.dtype, row.width, row.written, count)
                key = tuple(zip(self.key_columns, values, strict=True))
                for backend in row_backends(device, row.kind):
                    yield Case(self.name, key, backend, level, (("row_bytes", row.row_bytes),))

    def build(self, case: Case, device: Device) -> Kernel:
        """Return the call of a case."""
        dtype, width, tokens = case["dtype"], case["width"], case["tokens"]
        elements = tokens * (4 * width + 2 * case["written"])
        device.rotation(elements * width_of(dtype))  # raises if it does not fit
        kernels = row_kernels(case.backend)
        made = _KINDS[case["kind"]](device, dtype, width, case["written"], tokens, kernels=kernels)

        def error() -> float:
            made.fresh()
            output = made.call(0)
            return relative_error(output[0] if isinstance(output, tuple) else output, made.expected())

        name, version = f"{case.backend} {case['kind']}", version_of(case.backend)
        return Kernel(made.call, 1, error, TOLERANCE[dtype], name, version, rows=tokens)


class Made(NamedTuple):
    """A kernel on inputs of its own."""

    call: Callable[[int], Any]
    """As `Kernel.call`; there is one copy of the inputs."""
    expected: Callable[[], Any]
    """Its output in float64."""
    fresh: Callable[[], Any] = lambda: None
    """Restores inputs that the kernel overwrites."""


def _norm64(x: Any, weight: Any) -> Any:
    wide = x.double()
    return wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()


def _add_rmsnorm(device: Device, dtype: str, width: int, _: int, tokens: int, kernels: Any) -> Made:
    x = normal(device, tokens, width, dtype=dtype)
    residual = normal(device, tokens, width, dtype=dtype)
    weight = normal(device, width, dtype=dtype)
    # vLLM's kernel works in place.
    first = x.clone(), residual.clone()
    return Made(
        lambda _: kernels.add_rmsnorm(x, residual, weight),
        lambda: _norm64(first[0] + first[1], weight),
        lambda: (x.copy_(first[0]), residual.copy_(first[1])),
    )


def _rmsnorm(device: Device, dtype: str, width: int, _: int, tokens: int, kernels: Any) -> Made:
    x = normal(device, tokens, width, dtype=dtype)
    weight = normal(device, width, dtype=dtype)
    return Made(lambda _: kernels.rmsnorm(x, weight), lambda: _norm64(x, weight))


def _rope_write(device: Device, dtype: str, width: int, written: int, tokens: int, kernels: Any) -> Made:
    torch = need_torch()
    d = ROPE_DIM if width % ROPE_DIM == 0 else 2
    x = normal(device, tokens, width // d, d, dtype=dtype)
    angles = torch.arange(tokens, device=device.place)[:, None] / 10000 ** (
        torch.arange(d // 2, device=device.place) / (d // 2)
    )
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    rows = normal(device, tokens, written, dtype=dtype)
    cache = torch.zeros(tokens, written, dtype=x.dtype, device=device.place)
    slots = torch.randperm(tokens, device=device.place)

    def expected() -> Any:
        if not torch.equal(cache[slots], rows):
            return torch.full(x.shape, float("nan"), dtype=torch.float64)
        pairs = torch.complex(*(part.contiguous() for part in x.double().chunk(2, -1)))
        turned = pairs * torch.polar(torch.ones_like(angles).double(), angles.double()).unsqueeze(1)
        return torch.cat((turned.real, turned.imag), -1)

    return Made(lambda _: kernels.rope_write(x, cos, sin, rows, cache, slots), expected)


def _silu_mul(device: Device, dtype: str, width: int, _: int, tokens: int, kernels: Any) -> Made:
    torch = need_torch()
    x = normal(device, tokens, width, dtype=dtype)

    def expected() -> Any:
        gate, value = x.double().chunk(2, -1)
        return gate * torch.sigmoid(gate) * value

    return Made(lambda _: kernels.silu_mul(x), expected)


def _add(device: Device, dtype: str, width: int, _: int, tokens: int, kernels: Any) -> Made:
    x, y = (normal(device, tokens, width, dtype=dtype) for _ in range(2))
    return Made(lambda _: x + y, lambda: x.double() + y.double())


def _embedding(device: Device, dtype: str, width: int, _: int, tokens: int, kernels: Any) -> Made:
    torch = need_torch()
    rows = 4096
    table = normal(device, rows, width, dtype=dtype)
    ids = torch.randint(rows, (tokens,), device=device.place)
    return Made(lambda _: torch.nn.functional.embedding(ids, table), lambda: table.double()[ids])


def _argmax(device: Device, dtype: str, width: int, _: int, tokens: int, kernels: Any) -> Made:
    torch = need_torch()
    logits = normal(device, tokens, width, dtype=dtype)

    def call(_: int) -> Any:
        return torch.argmax(logits.float(), -1)

    def expected() -> Any:
        """Where several logits are the largest, any of them will do."""
        wide, chosen = logits.double(), call(0)
        right = wide.gather(1, chosen.unsqueeze(1)).squeeze(1) == wide.amax(-1)
        return torch.where(right, chosen.double(), float("nan"))

    return Made(call, expected)


def _topk(device: Device, dtype: str, width: int, _: int, tokens: int, kernels: Any) -> Made:
    torch = need_torch()
    logits = normal(device, tokens, width, dtype=dtype)
    picks = min(TOPK, width)

    def call(_: int) -> Any:
        return torch.topk(torch.softmax(logits.float(), -1), picks, -1)[0]

    def expected() -> Any:
        wide = logits.double()
        shares = (wide - wide.amax(-1, keepdim=True)).exp()
        return (shares / shares.sum(-1, keepdim=True)).sort(-1, descending=True)[0][:, :picks]

    return Made(call, expected)


_KINDS: dict[str, Callable[..., Made]] = {
    "add_rmsnorm": _add_rmsnorm,
    "rmsnorm": _rmsnorm,
    "rope_write": _rope_write,
    "silu_mul": _silu_mul,
    "add": _add,
    "embedding": _embedding,
    "argmax": _argmax,
    "topk": _topk,
}
