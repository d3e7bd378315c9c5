"""Kernels that only move memory: norms, rotary embedding with the write to the cache, activation, ends.

The pack's columns are kind, dtype, width and tokens; `written` (elements put into the cache per row) tells
rotary rows apart, and `row_bytes` says what a row moves, as the step latency counts it. Inputs do not
rotate: in a model the kernel before has just written them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from simserve.profiler.case import Case, Kernel, refinement
from simserve.profiler.device import Device
from simserve.profiler.need import need_torch, version_of
from simserve.profiler.ops.row_kernels import row_backends, row_kernels
from simserve.profiler.reference import TOLERANCE, relative_error
from simserve.profiler.shapes import Shapes
from simserve.profiler.tensors import copies, normal, width_of

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
        device.rotation(max(elements * width_of(dtype), 1.0))
        sets = 1
        kernels = row_kernels(case.backend)
        made = _KINDS[case["kind"]](device, dtype, width, case["written"], tokens, sets, kernels=kernels)

        def error() -> float:
            made.fresh()
            output = made.call(0)
            return relative_error(output[0] if isinstance(output, tuple) else output, made.expected())

        name, version = f"{case.backend} {case['kind']}", version_of(case.backend)
        return Kernel(made.call, sets, error, TOLERANCE[dtype], name, version)


class Made(NamedTuple):
    """A kernel on inputs of its own."""

    call: Callable[[int], Any]
    expected: Callable[[], Any]
    """Its output in float64."""
    fresh: Callable[[], Any] = lambda: None
    """Restores inputs that the kernel overwrites."""


def _norm64(x: Any, weight: Any) -> Any:
    wide = x.double()
    return wide / (wide.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight.double()


def _add_rmsnorm(
    device: Device, dtype: str, width: int, _: int, tokens: int, sets: int, kernels: Any
) -> Made:
    x = copies(normal(device, tokens, width, dtype=dtype), sets)
    residual = copies(normal(device, tokens, width, dtype=dtype), sets)
    weight = normal(device, width, dtype=dtype)
    # vLLM's kernel works in place.
    first = x[0].clone(), residual[0].clone()
    return Made(
        lambda i: kernels.add_rmsnorm(x[i], residual[i], weight),
        lambda: _norm64(first[0] + first[1], weight),
        lambda: (x[0].copy_(first[0]), residual[0].copy_(first[1])),
    )


def _rmsnorm(device: Device, dtype: str, width: int, _: int, tokens: int, sets: int, kernels: Any) -> Made:
    x = copies(normal(device, tokens, width, dtype=dtype), sets)
    weight = normal(device, width, dtype=dtype)
    return Made(lambda i: kernels.rmsnorm(x[i], weight), lambda: _norm64(x[0], weight))


def _rope_write(
    device: Device, dtype: str, width: int, written: int, tokens: int, sets: int, kernels: Any
) -> Made:
    torch = need_torch()
    d = ROPE_DIM if width % ROPE_DIM == 0 else 2
    x = copies(normal(device, tokens, width // d, d, dtype=dtype), sets)
    angles = torch.arange(tokens, device=device.place)[:, None] / 10000 ** (
        torch.arange(d // 2, device=device.place) / (d // 2)
    )
    cos, sin = angles.cos().to(x[0].dtype), angles.sin().to(x[0].dtype)
    rows = copies(normal(device, tokens, written, dtype=dtype), sets)
    cache = [torch.zeros(tokens, written, dtype=x[0].dtype, device=device.place) for _ in range(sets)]
    slots = torch.randperm(tokens, device=device.place)

    def expected() -> Any:
        if not torch.equal(cache[0][slots], rows[0]):
            return torch.full(x[0].shape, float("nan"), dtype=torch.float64)
        pairs = torch.complex(*(part.contiguous() for part in x[0].double().chunk(2, -1)))
        turned = pairs * torch.polar(torch.ones_like(angles).double(), angles.double()).unsqueeze(1)
        return torch.cat((turned.real, turned.imag), -1)

    return Made(lambda i: kernels.rope_write(x[i], cos, sin, rows[i], cache[i], slots), expected)


def _silu_mul(device: Device, dtype: str, width: int, _: int, tokens: int, sets: int, kernels: Any) -> Made:
    torch = need_torch()
    x = copies(normal(device, tokens, width, dtype=dtype), sets)

    def expected() -> Any:
        gate, value = x[0].double().chunk(2, -1)
        return gate * torch.sigmoid(gate) * value

    return Made(lambda i: kernels.silu_mul(x[i]), expected)


def _embedding(device: Device, dtype: str, width: int, _: int, tokens: int, sets: int, kernels: Any) -> Made:
    torch = need_torch()
    rows = 4096
    table = normal(device, rows, width, dtype=dtype)
    ids = [torch.randint(rows, (tokens,), device=device.place) for _ in range(sets)]
    return Made(lambda i: torch.nn.functional.embedding(ids[i], table), lambda: table.double()[ids[0]])


def _argmax(device: Device, dtype: str, width: int, _: int, tokens: int, sets: int, kernels: Any) -> Made:
    torch = need_torch()
    logits = copies(normal(device, tokens, width, dtype=dtype), sets)

    def call(i: int) -> Any:
        return torch.argmax(logits[i].float(), -1)

    def expected() -> Any:
        """Where several logits are the largest, any of them will do."""
        wide, chosen = logits[0].double(), call(0)
        right = wide.gather(1, chosen.unsqueeze(1)).squeeze(1) == wide.amax(-1)
        return torch.where(right, chosen.double(), float("nan"))

    return Made(call, expected)


def _topk(device: Device, dtype: str, width: int, _: int, tokens: int, sets: int, kernels: Any) -> Made:
    torch = need_torch()
    logits = copies(normal(device, tokens, width, dtype=dtype), sets)
    picks = min(TOPK, width)

    def call(i: int) -> Any:
        return torch.topk(torch.softmax(logits[i].float(), -1), picks, -1)[0]

    def expected() -> Any:
        wide = logits[0].double()
        shares = (wide - wide.amax(-1, keepdim=True)).exp()
        return (shares / shares.sum(-1, keepdim=True)).sort(-1, descending=True)[0][:, :picks]

    return Made(call, expected)


_KINDS: dict[str, Callable[..., Made]] = {
    "add_rmsnorm": _add_rmsnorm,
    "rmsnorm": _rmsnorm,
    "rope_write": _rope_write,
    "silu_mul": _silu_mul,
    "embedding": _embedding,
    "argmax": _argmax,
    "topk": _topk,
}
