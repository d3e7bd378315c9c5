"""Matrix products: y[m, n] = x[m, k] W[k, n], from the `gemm` table.

fp8, fp8_block and nvfp4 rows include the quantisation of x, so nothing is added for it.
"""

from __future__ import annotations

from math import inf
from typing import Any

from simserve.latency.costs import Cost, LinearOp, Weights, analytic
from simserve.latency.grid import Float64, Grid
from simserve.latency.kernels.cold import not_faster_than, sustained_bytes_per_us
from simserve.latency.kernels.machine import Machine
from simserve.latency.roofline import BYTES


def gemm(machine: Machine, name: str, dtype: str, n: int, k: int, times: int = 1) -> LinearOp:
    """Return the product with an [n, k] weight as a function of its rows m."""
    found = machine.cached(("gemm", dtype), lambda: gemm_grid(machine, dtype))
    if found is None:
        machine.missing("gemm", f"matrix products with {dtype} weights", "dtype", dtype)

    def cost(rows: Float64) -> Cost:
        if found is None:
            return analytic(machine.peaks.analytic_us(*_work(n, k, rows, dtype), dtype))
        grid, bytes_per_us = found
        cold_us = grid.launch_us + n * k * BYTES[dtype] / bytes_per_us
        return not_faster_than(Cost(*grid.tagged(float(n), float(k), rows)), cold_us)

    return LinearOp(name, cost, times, Weights(n * k, dtype))


def gemm_grid(machine: Machine, dtype: str) -> tuple[Grid, float] | None:
    """Return the grid over (n, k, m), and the bytes per microsecond that reading large weights sustains."""
    rows = machine.rows("gemm", dtype="bf16" if dtype == "fp16" else dtype)
    if rows is None:
        return None
    columns = [rows.numbers(column) for column in "nkm"]
    latency_us = rows.numbers("latency_us")
    grid = Grid(columns, latency_us, lambda n, k, m: machine.peaks.us(*_work(n, k, m, dtype), dtype))
    thin = columns[2] == 1
    if rows.rotating:
        return grid, inf
    weights = (columns[0] * columns[1] * BYTES[dtype])[thin]
    return grid, sustained_bytes_per_us(weights, latency_us[thin], machine.peaks.hbm_bytes_per_s)


def _work(n: Any, k: Any, m: Any, dtype: str) -> tuple[Any, Any]:
    """Return FLOPs and bytes: weights once, activations in (8 bit under fp8) and out (16 bit)."""
    activation = 1.0 if dtype.startswith("fp8") else 2.0
    return 2.0 * n * k * m, BYTES[dtype] * n * k + m * (activation * k + 2.0 * n)
