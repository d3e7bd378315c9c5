"""Matrix products y[m, n] = x[m, k] W[k, n], each with weights of its own, as layers have.

fp8 rows include the quantisation of x (per tensor; fp8_block per 128 elements), as those of the shipped
tables do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from simserve.profiler.case import Case, Kernel, refinement
from simserve.profiler.device import Device, need_torch, needed, version_of
from simserve.profiler.shapes import Shapes
from simserve.profiler.tensors import (
    TOLERANCE,
    by_row_groups,
    by_tensor,
    by_tiles,
    copies,
    finite,
    from_tiles,
    normal,
    powers_of_two,
    relative_error,
    sampled,
    width_of,
)


class Gemm:
    """The `gemm` table."""

    name = "gemm"
    key_columns = ("dtype", "n", "k", "m")

    def cases(self, shapes: Shapes, device: Device) -> Iterable[Case]:
        """Yield every weight of the models at every token count."""
        tokens = shapes.sizes.tokens
        levels = refinement(len(tokens))
        wanted = [(dtype, *nk) for dtype in shapes.weight_dtypes for nk in shapes.products]
        wanted += [(shapes.dtype, *nk) for nk in shapes.plain_products]
        for dtype, n, k in dict.fromkeys(wanted):
            backend = _backend(dtype)
            for m, level in zip(tokens, levels, strict=True):
                yield Case(self.name, (("dtype", dtype), ("n", n), ("k", k), ("m", m)), backend, level)

    def build(self, case: Case, device: Device) -> Kernel:
        """Return the product of a case."""
        dtype, n, k, m = (case[name] for name in self.key_columns)
        if dtype == "fp8":
            call, sets, parts = _fp8(device, n, k, m)
        elif dtype == "fp8_block":
            call, sets, parts = _fp8_block(device, n, k, m)
        else:
            call, sets, parts = _plain(device, n, k, m, dtype)

        def error() -> float:
            output = call(0)
            if not finite(output):
                return float("inf")
            rows = sampled(m)
            x, weight = parts()
            return relative_error(output[rows], x[rows].double() @ weight.double())

        name = {"fp8": "quantise + torch._scaled_mm", "fp8_block": "quantise + deep_gemm"}.get(
            dtype, "torch.mm"
        )
        return Kernel(call, sets, error, TOLERANCE[dtype], name, version_of(case.backend), rows=m)


def _backend(dtype: str) -> str:
    return "deep_gemm" if dtype == "fp8_block" else "torch"


Parts = tuple[Callable[[int], Any], int, Callable[[], tuple[Any, Any]]]
"""The call, the copies of its inputs, and x [m, k] and W [k, n] of the first copy for the reference."""


def _plain(device: Device, n: int, k: int, m: int, dtype: str) -> Parts:
    torch = need_torch()
    width = width_of(dtype)
    sets = device.rotation((n * k + m * (n + k)) * width)
    # Linear layers keep W as [n, k] and multiply by its transpose.
    weights = copies(normal(device, n, k, dtype=dtype, scale=k**-0.5), sets)
    x = copies(normal(device, m, k, dtype=dtype), sets)
    return (
        lambda i: torch.nn.functional.linear(x[i], weights[i]),
        sets,
        lambda: (x[0], weights[0].T),
    )


def _fp8(device: Device, n: int, k: int, m: int) -> Parts:
    torch = need_torch()
    sets = device.rotation(n * k + m * (3 * k + 2 * n))
    x = copies(normal(device, m, k, dtype="bf16"), sets)
    packed, scale = by_tensor(normal(device, n, k, dtype="bf16", scale=k**-0.5))
    weights = copies(packed, sets)

    def call(i: int) -> Any:
        quantised, x_scale = by_tensor(x[i])
        return torch._scaled_mm(quantised, weights[i].T, x_scale, scale, out_dtype=torch.bfloat16)

    return call, sets, lambda: (x[0], (weights[0].float() * scale).T)


def _fp8_block(device: Device, n: int, k: int, m: int) -> Parts:
    torch, deep_gemm = need_torch(), needed("deep_gemm")
    multiply = getattr(deep_gemm, "fp8_gemm_nt", None) or deep_gemm.gemm_fp8_fp8_bf16_nt
    rounded = powers_of_two(device)
    sets = device.rotation(n * k + m * (3 * k + 2 * n))
    x = copies(normal(device, m, k, dtype="bf16"), sets)
    packed, scales = by_tiles(normal(device, n, k, dtype="bf16", scale=k**-0.5), rounded)
    weights = copies(packed, sets)

    def call(i: int) -> Any:
        out = torch.empty(m, n, dtype=torch.bfloat16, device=device.place)
        multiply(by_row_groups(x[i], rounded), (weights[i], scales), out)
        return out

    return call, sets, lambda: (x[0], from_tiles(weights[0], scales).T)
