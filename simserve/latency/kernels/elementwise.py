"""Kernels that only move memory: norms, activations, rotary embedding, embedding look-up, sampling.

No shipped table measures them, so they are memory-bound at a named efficiency, and never shorter than a
launch.
"""

from __future__ import annotations

import numpy as np

from simserve.latency.costs import Cost, LinearOp, analytic
from simserve.latency.grid import Float64
from simserve.latency.kernels.machine import Machine

ELEMENTWISE_EFFICIENCY = 0.8
"""Share of HBM bandwidth reached (assumption)."""
ELEMENTWISE_LAUNCH_US = 2.5
"""Shortest such kernel (LLMServingSim's profiles, 2026-08: 1.9-3.1 us for norms, rotary and activations
of one token on RTX 4090 and RTX PRO 6000)."""


def elementwise(
    machine: Machine, name: str, bytes_per_row: float, times: int = 1, start_us: float = 0.0
) -> LinearOp:
    """Return a kernel that moves `bytes_per_row` bytes for each token (or sequence), after `start_us`."""
    us_per_row = bytes_per_row * 1e6 / machine.peaks.hbm_bytes_per_s / ELEMENTWISE_EFFICIENCY

    def cost(rows: Float64) -> Cost:
        return analytic(np.maximum(ELEMENTWISE_LAUNCH_US, start_us + rows * us_per_row))

    return LinearOp(name, cost, times)
