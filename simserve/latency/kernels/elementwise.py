"""Kernels that only move memory: norms, activations, rotary embedding, embedding look-up, sampling.

No shipped table measures them, so they are memory-bound at a named efficiency, and never shorter than a
launch. Where `simserve profile run` has measured their kind, the table `elementwise` is taken, by bytes per
row.
"""

from __future__ import annotations

import numpy as np

from simserve.latency.costs import Cost, LinearOp, analytic
from simserve.latency.grid import Float64, Grid
from simserve.latency.kernels.machine import Machine

ELEMENTWISE_EFFICIENCY = 0.8
"""Share of HBM bandwidth reached (assumption)."""
ELEMENTWISE_LAUNCH_US = 2.5
"""Shortest such kernel (LLMServingSim's profiles, 2026-08: 1.9-3.1 us for norms, rotary and activations
of one token on RTX 4090 and RTX PRO 6000)."""

KINDS = {
    "norm": "add_rmsnorm",
    "final norm": "rmsnorm",
    "q norm": "rmsnorm",
    "qk norm": "rmsnorm",
    "q and latent norm": "rmsnorm",
    "rotary + KV write": "rope_write",
    "activation": "silu_mul",
    "embedding": "embedding",
    "sampling": "argmax",
    "router top-k": "topk",
    "shared expert sum": "add",
}
"""What the table calls the kernels of the blocks (of "MLP activation" the last word counts)."""


def elementwise(
    machine: Machine, name: str, bytes_per_row: float, times: int = 1, start_us: float = 0.0
) -> LinearOp:
    """Return a kernel that moves `bytes_per_row` bytes for each token (or sequence), after `start_us`.

    A measured table has its own start.
    """
    kind = KINDS.get(name) or KINDS.get(name.rsplit(" ", 1)[-1])
    grid = machine.cached(("elementwise", kind), lambda: _grid(machine, kind)) if kind else None
    us_per_row = bytes_per_row * 1e6 / machine.peaks.hbm_bytes_per_s / ELEMENTWISE_EFFICIENCY

    def cost(rows: Float64) -> Cost:
        if grid is not None:
            return Cost(*grid.tagged(bytes_per_row, rows))
        return analytic(np.maximum(ELEMENTWISE_LAUNCH_US, start_us + rows * us_per_row))

    return LinearOp(name, cost, times)


def elementwise_if_measured(machine: Machine, name: str, bytes_per_row: float) -> list[LinearOp]:
    """Return `elementwise` in a list, which is empty where this kind was not measured.

    For what engines fuse into a neighbour on some hardware, and a profile of the user's own machine holds.
    """
    kind = KINDS[name]
    rows = machine.rows("elementwise", kind=kind)
    return [] if rows is None else [elementwise(machine, name, bytes_per_row)]


def _grid(machine: Machine, kind: str) -> Grid | None:
    """Return the grid over (bytes per row, rows) of one kind, None if it was not measured."""
    rows = machine.rows("elementwise", kind=kind)
    if rows is None or "row_bytes" not in rows.names:
        return None
    columns = [rows.numbers("row_bytes"), rows.numbers("tokens")]
    per_byte_us = 1e6 / machine.peaks.hbm_bytes_per_s
    return Grid(columns, rows.numbers("latency_us"), lambda width, count: width * count * per_byte_us)
