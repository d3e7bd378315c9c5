"""Dispatch and combine from the topology alone: NVLink within a node, one NIC per GPU across.

For engines and sizes that no table covers. A token goes once to each rank that holds one of its experts
inside the node, and once per remote node (forwarded over NVLink there), as DeepEP's normal kernels do it.
"""

from __future__ import annotations

import numpy as np

from simserve.latency.costs import Cost, analytic
from simserve.latency.grid import Float64
from simserve.latency.kernels.collective import LINK_EFFICIENCY, NETWORK_BYTES_PER_S
from simserve.latency.kernels.exchange import BYTES_PER_VALUE, START_US
from simserve.latency.kernels.machine import Machine


class TopologyExchange:
    """One direction of one layer's exchange by tokens per rank, tagged analytic."""

    def __init__(self, machine: Machine, phase: str, hidden: int, topk: float, ranks: int) -> None:
        """`phase` is "dispatch" (fp8 with scales) or "combine" (16 bit)."""
        nodes = max(1, -(-ranks // machine.gpus_per_node))
        inside = ranks / nodes
        token_bytes = hidden * BYTES_PER_VALUE[phase]
        # Expected distinct destinations of topk picks that fall on ranks (or nodes) at random.
        other_nodes = (nodes - 1) * -np.expm1(topk * np.log1p(-1 / nodes)) if nodes > 1 else 0.0
        own_ranks = (inside - 1) * -np.expm1(topk * np.log1p(-1 / ranks)) if ranks > 1 else 0.0
        self._link_us = own_ranks * token_bytes * 1e6 / machine.peaks.link_bytes_per_s / LINK_EFFICIENCY
        self._network_us = other_nodes * token_bytes * 1e6 / NETWORK_BYTES_PER_S / LINK_EFFICIENCY

    def cost(self, tokens: Float64, sent: Float64 | None = None) -> Cost:
        """Return the cost for `tokens` of each rank (float64[n]): both networks work at once."""
        return analytic(START_US + tokens * max(self._link_us, self._network_us))
