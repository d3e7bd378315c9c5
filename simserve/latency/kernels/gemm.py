"""Matrix products: y[m, n] = x[m, k] W[k, n], from the `gemm` table.

fp8, fp8_block and nvfp4 rows include the quantisation of x, so nothing is added for it.
"""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np

from simserve.core.operation import Operation
from simserve.latency.kernels.machine import Machine, not_faster_than, sustained_bytes_per_us
from simserve.latency.tables.grid import Float64, Grid
from simserve.latency.tables.roofline import BYTES, Cost, LinearOp, Weights, analytic


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


# Kernels that only move memory: norms, activations, rotary embedding, embedding look-up, sampling.
#
# No shipped table measures them, so they are memory-bound at a named efficiency, and never shorter than a
# launch. Where `simserve profile run` has measured their kind, the table `elementwise` is taken, by bytes per
# row.

ELEMENTWISE_EFFICIENCY = 0.8
"""Share of HBM bandwidth reached (assumption)."""
ELEMENTWISE_LAUNCH_US = 2.5
"""Shortest such kernel (LLMServingSim's profiles, 2026-08: 1.9-3.1 us for norms, rotary and activations
of one token on RTX 4090 and RTX PRO 6000)."""


def elementwise(
    machine: Machine, name: str, bytes_per_row: float, kind: str = "", start_us: float = 0.0
) -> LinearOp:
    """Return a kernel that moves `bytes_per_row` bytes for each token (or sequence), after `start_us`.

    `kind` is what the table calls it, if it is measured at all; the table has its own start.
    """
    grid = machine.cached(("elementwise", kind), lambda: _grid(machine, kind)) if kind else None
    us_per_row = bytes_per_row * 1e6 / machine.peaks.hbm_bytes_per_s / ELEMENTWISE_EFFICIENCY

    def cost(rows: Float64) -> Cost:
        if grid is not None:
            return Cost(*grid.tagged(bytes_per_row, rows))
        return analytic(np.maximum(ELEMENTWISE_LAUNCH_US, start_us + rows * us_per_row))

    return LinearOp(name, cost, group=_GROUPS.get(kind, Operation.OTHER))


_GROUPS = {
    "rmsnorm": Operation.NORMS,
    "add_rmsnorm": Operation.NORMS,
    "embedding": Operation.ENDS,
    "argmax": Operation.ENDS,
}
"""Groups of the kinds that mean the same wherever they run."""


def elementwise_if_measured(machine: Machine, name: str, bytes_per_row: float, kind: str) -> list[LinearOp]:
    """Return `elementwise` in a list, which is empty where this kind was not measured.

    For what engines fuse into a neighbour on some hardware, and a profile of the user's own machine holds.
    """
    rows = machine.rows("elementwise", kind=kind)
    return [] if rows is None else [elementwise(machine, name, bytes_per_row, kind)]


def _grid(machine: Machine, kind: str) -> Grid | None:
    """Return the grid over (bytes per row, rows) of one kind, None if it was not measured."""
    rows = machine.rows("elementwise", kind=kind)
    if rows is None or "row_bytes" not in rows.names:
        return None
    columns = [rows.numbers("row_bytes"), rows.numbers("tokens")]
    per_byte_us = 1e6 / machine.peaks.hbm_bytes_per_s
    return Grid(columns, rows.numbers("latency_us"), lambda width, count: width * count * per_byte_us)
