"""From attention to FFN GPUs and back over the network: the two directions of one layer's hop.

By formula, every GPU has one port: the fullest attention GPU sends its tokens, the busiest FFN GPU receives
its picks, and the slower port decides. A token goes once to each FFN GPU that holds one of its experts (the
M-to-N exchange of MegaScale-Infer, arXiv 2504.02263), or once per FFN node and over NVLink from there, in 8
bit with scales; what comes back has 16 bit. From the tables, the hop takes what DeepEP's low-latency kernels
take among as many GPUs when every rank sends what the busier port carries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from simserve.latency.costs import Cost, analytic
from simserve.latency.grid import Float64
from simserve.latency.kernels.collective import LINK_EFFICIENCY
from simserve.latency.kernels.exchange import BYTES_PER_VALUE, ExpertExchange
from simserve.latency.kernels.machine import Machine

Phase = Literal["dispatch", "combine"]


@dataclass(frozen=True)
class Sides:
    """Who talks to whom."""

    attention_gpus: int
    tp: int
    """GPUs of one attention rank: they share its tokens."""
    ffn_gpus: int
    nodes: int
    """Of both sides together."""
    ffn_gpus_per_node: int


class Network(NamedTuple):
    """What carries the hop."""

    start_us: float
    bytes_per_s: float
    """Achieved by one GPU's port, each way."""
    per_node: bool = False
    """True: once per FFN node, and over NVLink there."""


class NetworkHop:
    """One direction of the hop of a layer, by formula."""

    def __init__(
        self, machine: Machine, phase: Phase, hidden: int, topk: float, sides: Sides, network: Network
    ) -> None:
        """`machine` is an FFN GPU; `topk` 0 stands for a dense layer, whose tokens go to one GPU each."""
        token_bytes = hidden * BYTES_PER_VALUE[phase]
        gpus = sides.ffn_gpus
        copies = _distinct(topk, gpus)
        sent = _distinct(topk, -(-gpus // sides.ffn_gpus_per_node)) if network.per_node else copies
        port_us = token_bytes * 1e6 / network.bytes_per_s
        link_us = token_bytes * 1e6 / machine.peaks.link_bytes_per_s / LINK_EFFICIENCY
        self._start_us = network.start_us
        self._sent_us = sent * port_us / sides.tp
        self._received_us = max(sent * port_us, copies * link_us if network.per_node else 0.0) / gpus

    def cost(self, fullest: Float64, received: Float64) -> Cost:
        """Return the cost for `fullest` tokens of one attention rank (float64[n]).

        `received`: tokens of all ranks that would give every FFN GPU the picks of the busiest.
        """
        return analytic(self._start_us + np.maximum(fullest * self._sent_us, received * self._received_us))


class TableHop:
    """One direction of the hop, from the exchange tables."""

    def __init__(
        self, machine: Machine, phase: Phase, hidden: int, topk: float, experts: int, sides: Sides
    ) -> None:
        """`machine` is an attention GPU."""
        ranks = sides.attention_gpus + sides.ffn_gpus
        shape = (hidden, max(1, round(topk)), experts, ranks, sides.nodes)
        self._exchange = ExpertExchange(machine, phase, *shape, mode="low_latency")
        self._sides = sides

    def cost(self, fullest: Float64, received: Float64) -> Cost:
        """Return the cost (arguments as in `NetworkHop.cost`)."""
        sides = self._sides
        each = np.maximum(fullest / sides.tp, received / sides.ffn_gpus)
        return self._exchange.cost(np.maximum(each, 1.0))


def _distinct(picks: float, places: int) -> float:
    """Return the places that a token's picks fall on in expectation, if they fall at random."""
    return places * (1.0 - (1.0 - 1.0 / places) ** picks) if picks else 1.0
