"""Sending tokens to the GPUs of their experts and back: DeepEP's dispatch and combine, from `ep_a2a`.

Each rank sends `tokens` of its own; every rank is taken to carry the same. Small steps use the low-latency
kernels (one message per expert), larger ones the normal kernels (one per destination node and rank). More
nodes than were measured take the nearest number of nodes: beyond eight the share of traffic that leaves the
node hardly grows (DeepEP's own figures: 64 ranks 173 and 314 us, 256 ranks 194 and 360 us).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import log2
from typing import Literal, NamedTuple

import numpy as np

from simserve.latency.kernels.collective import LINK_EFFICIENCY, NETWORK_BYTES_PER_S
from simserve.latency.kernels.machine import Machine
from simserve.latency.tables.grid import EXTRAPOLATED, Float64, Grid
from simserve.latency.tables.profiles import ProfileTable
from simserve.latency.tables.roofline import Cost, analytic

LOW_LATENCY_MAX_TOKENS = 256
"""Most tokens per rank for the low-latency kernels (vLLM 0.33.0 plans at most 256 for batched-EP
back-ends)."""
NORMAL_SMS = 20
"""Multiprocessors of the normal kernels (DeepEP's default buffer configuration)."""
SAME_NETWORK = {"h200_sxm": "h100_sxm"}
"""GPUs whose multi-node rows the source copies from another (same NVLink and NIC generation): quality bit
64."""
BYTES_PER_VALUE = {"dispatch": 1.0 + 4 / 128, "combine": 2.0}
"""On the wire: 8 bit with a scale of 4 bytes per 128 values out, 16 bit back (DeepEP)."""
START_US = 20.0
"""Start of an estimated exchange (assumption; low-latency rows bottom out at 10-30 us)."""


class ExpertExchange:
    """Dispatch or combine of one layer by tokens per rank."""

    def __init__(
        self,
        machine: Machine,
        phase: str,
        hidden: int,
        topk: int,
        experts: int,
        ranks: int,
        nodes: int,
        mode: str = "",
    ) -> None:
        """`phase` is "dispatch" or "combine"; `mode` "low_latency" or "normal" runs only these kernels."""
        self.machine = machine
        self._most_low_latency = {"low_latency": np.inf, "normal": 0.0}.get(mode, LOW_LATENCY_MAX_TOKENS)
        self._per_token = hidden * topk * BYTES_PER_VALUE[phase]
        self._link = machine.peaks.link_bytes_per_s if nodes == 1 else NETWORK_BYTES_PER_S
        self._remote = (ranks - 1) / ranks
        wanted = (hidden, topk, experts, ranks, nodes)
        self._low_latency, self._normal = (
            machine.cached(
                ("ep_a2a", phase, mode, *wanted), lambda mode=mode: _grid(machine, phase, mode, wanted)
            )
            for mode in ("low_latency", "normal")
        )
        if self._low_latency is None or self._normal is None:
            machine.missing("ep_a2a", f"{phase} over {ranks} GPUs on {nodes} nodes", "ranks", ranks)

    def cost(self, tokens: Float64, sent: Float64 | None = None) -> Cost:
        """Return the cost for `tokens` of each rank (float64[n]); `sent` ones decide which kernels run."""
        if self._low_latency is None or self._normal is None:
            sent_us = tokens * self._per_token * self._remote * 1e6 / self._link
            return analytic(START_US + sent_us)
        small = (tokens if sent is None else sent) <= self._most_low_latency
        low, high = (Cost(*grid.tagged(tokens * scale)) for grid, scale in (self._low_latency, self._normal))
        return low.where(small, high)


def _grid(
    machine: Machine, phase: str, mode: str, wanted: tuple[int, int, int, int, int]
) -> tuple[Grid, float] | None:
    """Return the grid over tokens per rank, and tokens of the measured shape that one of ours weighs."""
    found = _rows(machine, phase, mode, wanted)
    if found is None:
        return None
    rows, shape, trust = found
    hidden, topk = shape[0], shape[1]
    grid = Grid(
        [rows.numbers("tokens_per_rank")],
        rows.numbers("latency_us"),
        lambda tokens: tokens * hidden * topk * 2.0e6 / machine.peaks.link_bytes_per_s,
        trend=True,
    )
    grid.trust = trust
    return grid, wanted[0] * wanted[1] / (hidden * topk)


def _rows(machine: Machine, phase: str, mode: str, wanted: tuple[int, int, int, int, int]):
    """Return the rows of the nearest measured shape, that shape, and how far it can be trusted."""
    trust = 0
    for gpu in (machine.gpu, SAME_NETWORK.get(machine.gpu, "")):
        table = machine.profiles.table(gpu, "ep_a2a") if gpu else None
        rows = table.select(phase=phase, mode=mode) if table else None
        if rows is not None and len(rows) and (wanted[4] == 1 or max(rows.values("nodes")) > 1):
            break
        trust = EXTRAPOLATED
    else:
        return None
    names = ("hidden", "topk", "experts", "ranks", "nodes")
    measured = [nodes for nodes in rows.values("nodes") if (nodes > 1) == (wanted[4] > 1)]
    if not measured:
        return None
    rows = rows.select(nodes=min(measured, key=lambda nodes: abs(log2(nodes / wanted[4]))))
    shapes = np.unique(np.stack([rows.column(name) for name in names]).astype(np.int64), axis=1).T
    weights = (1.0, 1.0, 0.25, 4.0, 0.0)
    nearest = min(
        shapes.tolist(),
        key=lambda shape: sum(w * abs(log2(a / b)) for w, a, b in zip(weights, shape, wanted, strict=True)),
    )
    rows = _newest(rows.select(**dict(zip(names, nearest, strict=True))))
    if mode == "normal":
        rows = rows.select(sms=min(rows.values("sms"), key=lambda sms: abs(sms - NORMAL_SMS)))
    return rows, tuple(nearest), trust if tuple(nearest) == wanted else EXTRAPOLATED


def _newest(rows: ProfileTable) -> ProfileTable:
    """Keep the newest version of the source's engine (`sglang-0.5.12` after `sglang-0.5.6.post2`)."""

    def number(version: str) -> list[int]:
        return [int(part) for part in re.findall(r"\d+", version)]

    return rows.select(backend_version=max(rows.values("backend_version"), key=number))


# Dispatch and combine from the topology alone: NVLink within a node, one NIC per GPU across.
#
# For engines and sizes that no table covers. A token goes once to each rank that holds one of its experts
# inside the node, and once per remote node (forwarded over NVLink there), as DeepEP's normal kernels do it.


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


# From attention to FFN GPUs and back over the network: the two directions of one layer's hop.
#
# By formula, every GPU has one port: the fullest attention GPU sends its tokens, the busiest FFN GPU receives
# its picks, and the slower port decides. A token goes once to each FFN GPU that holds one of its experts (the
# M-to-N exchange of MegaScale-Infer, arXiv 2504.02263), or once per FFN node and over NVLink from there, in 8
# bit with scales; what comes back has 16 bit. From the tables, the hop takes what DeepEP's low-latency
# kernels
# take among as many GPUs when every rank sends what the busier port carries.

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
