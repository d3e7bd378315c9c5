"""Sending tokens to the GPUs of their experts and back: DeepEP's dispatch and combine, from `ep_a2a`.

Each rank sends `tokens` of its own; every rank is taken to carry the same. Small steps use the low-latency
kernels (one message per expert), larger ones the normal kernels (one per destination node and rank). More
nodes than were measured take the nearest number of nodes: beyond eight the share of traffic that leaves the
node hardly grows (DeepEP's own figures: 64 ranks 173 and 314 us, 256 ranks 194 and 360 us).
"""

from __future__ import annotations

import re
from math import log2

import numpy as np

from simserve.latency.costs import Cost, analytic
from simserve.latency.grid import EXTRAPOLATED, Float64, Grid
from simserve.latency.kernels.collective import NETWORK_BYTES_PER_S
from simserve.latency.kernels.machine import Machine
from simserve.latency.profile_file import ProfileTable

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
