"""Matrix products: y[m, n] = x[m, k] W[k, n], from the `gemm` table.

fp8, fp8_block and nvfp4 rows include the quantisation of x, so nothing is added for it.
"""

from __future__ import annotations

import numpy as np

from simserve.latency.costs import Cost, LinearOp, analytic
from simserve.latency.grid import Float64, Grid
from simserve.latency.kernels.machine import Machine
from simserve.latency.roofline import BYTES


def gemm(machine: Machine, name: str, dtype: str, n: int, k: int, times: int = 1) -> LinearOp:
    """Return the product with an [n, k] weight as a function of its rows m."""
    grid = _grid(machine, dtype)
    if grid is None:
        machine.missing("gemm", f"matrix products with {dtype} weights", "dtype", dtype)

    def cost(rows: Float64) -> Cost:
        if grid is None:
            return analytic(machine.peaks.analytic_us(*_work(n, k, rows, dtype), dtype))
        return Cost(*grid.tagged(float(n), float(k), rows))

    return LinearOp(name, cost, times)


def _grid(machine: Machine, dtype: str) -> Grid | None:
    key = ("gemm", dtype)
    if key not in machine.cache:
        wanted = "bf16" if dtype == "fp16" else dtype
        rows = machine.rows("gemm", dtype=wanted)
        machine.cache[key] = (
            None
            if rows is None
            else Grid(
                [rows.numbers(column) for column in "nkm"],
                rows.numbers("latency_us"),
                lambda n, k, m: machine.peaks.us(*_work(n, k, m, dtype), dtype),
            )
        )
    return machine.cache[key]


def _work(n: Float64 | int, k: Float64 | int, m: Float64, dtype: str) -> tuple[Float64, Float64]:
    """Return FLOPs and bytes: weights once, activations in and out (16 bit out)."""
    flops = 2.0 * n * k * m
    activation = max(BYTES[dtype], 1.0) if dtype.startswith(("fp8", "bf16", "fp16")) else 2.0
    return flops, np.asarray(BYTES[dtype] * n * k + m * (activation * k + 2.0 * n))
