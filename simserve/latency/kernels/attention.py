"""Decode attention with a KV cache of heads (MHA, GQA, MQA), from the table `attn_decode`.

One new token for each of n sequences of equal length. Fewer or more KV heads than measured are run as a
smaller or larger batch (a kernel splits its work by sequence and KV head alike).
"""

from __future__ import annotations

from math import inf, log2

import numpy as np

from simserve.latency.costs import Cost, analytic
from simserve.latency.grid import Float64, Grid
from simserve.latency.kernels.cold import not_faster_than, sustained_bytes_per_us
from simserve.latency.kernels.heads import Heads, StandIn, measured_rows
from simserve.latency.kernels.machine import Machine

FA2_START_US = (-10.0, 6.0, 50.0)
"""Time of FlashAttention 2 beyond reading the cache: a + b * log2(sequences * KV heads), at most c. Found on
an RTX 4090 (20 us at 32 tiles, 50 from 1,024 on, contexts of 256 to 8,192); see `docs/latency.md`."""
FA2_START_TOKENS = 256
"""Context from which all of it shows; in proportion below."""


class DecodeAttention:
    """Decode attention of one layer on one GPU."""

    def __init__(self, machine: Machine, heads: Heads) -> None:
        """Find the rows that stand for these heads; see `measured_rows`."""
        self.machine = machine
        self.heads = heads
        found = machine.cached(("attn_decode", heads), lambda: _decode_grid(machine, heads))
        if found is None:
            machine.missing("attn_decode", f"decode attention of {heads}")
        self._grid: Grid | None = found[0] if found else None
        self._batch_factor: float = found[1] if found else 1.0
        self.bytes_per_us: float = found[2] if found else machine.peaks.hbm_bytes_per_s / 1e6
        """Bandwidth that large calls sustain."""
        self.launch_us = float(self._grid.at(1.0, 1.0)) if self._grid else 0.0
        self._splits = machine.traits.splits_contexts

    def measured_sequences(self) -> tuple[int, ...]:
        """Return the numbers of sequences that were measured, or that stand-in rows amount to, ascending."""
        batches = self._grid.axes[0].tolist() if self._grid else []
        return tuple(sorted({max(1, round(batch / self._batch_factor)) for batch in batches}))

    def cost(self, sequences: float, context: Float64) -> Cost:
        """Return the cost of `sequences` sequences that attend `context` tokens each (float64[n])."""
        context = self.attended(context)
        if self._grid is None:
            return analytic(self.machine.peaks.analytic_us(*self._work(sequences, context), self.heads.dtype))
        cost = Cost(*self._grid.tagged(sequences * self._batch_factor, context))
        return not_faster_than(cost, self._floor_us(sequences, context))

    def one_us(self, sequences: float, context: float) -> float:
        """Return the time at one context, without its provenance: as `cost`, but faster for one point."""
        context = float(self.attended(context))
        if self._grid is None:
            return self.machine.peaks.analytic_us(*self._work(sequences, context), self.heads.dtype)
        us = self._grid.at_one(sequences * self._batch_factor, context)
        return max(us, self._floor_us(sequences, context))

    def attended(self, context):
        """Return the tokens attended: all, the window's, or half a chunk on average beyond the first."""
        window = float(self.heads.window)
        if not window:
            return context
        return (
            np.where(context > window, window / 2, context)
            if self.heads.chunked
            else np.minimum(context, window)
        )

    def _floor_us(self, sequences, context):
        """Return the time to start, and to read the cache at the bandwidth that large calls sustain."""
        read_us = sequences * context * (self.heads.kv_bytes / self.bytes_per_us)
        if self._splits:
            return self.launch_us + read_us
        base, slope, most = FA2_START_US
        start_us = min(most, base + slope * log2(max(1.0, sequences * self.heads.kv_heads)))
        shown = np.minimum(1.0, context / FA2_START_TOKENS)
        return read_us + np.maximum(self.launch_us, shown * start_us)

    def _work(self, sequences, context):
        """Return FLOPs and bytes."""
        queries = self.heads.q_heads * self.heads.head_dim
        pairs = sequences * context
        return 4.0 * queries * pairs, pairs * self.heads.kv_bytes + sequences * 4.0 * queries


def _decode_grid(machine: Machine, wanted: Heads) -> tuple[Grid, float, float] | None:
    """Return the grid over (batch, context), the batch that one sequence stands for, and the bandwidth."""
    found: StandIn | None = measured_rows(machine, "attn_decode", wanted)
    if found is None:
        return None
    rows, heads = found.rows, found.heads

    def work_us(q_heads, batch, context, shape=heads):
        seen = np.minimum(context, float(shape.window)) if shape.window else context
        pairs, queries = batch * seen, q_heads * shape.head_dim
        return machine.peaks.us(
            4.0 * queries * pairs, pairs * shape.kv_bytes + batch * queries * 4.0, shape.dtype
        )

    q_heads, batch, context = (rows.numbers(name) for name in ("q_heads", "batch", "kv_len"))
    latency_us = rows.numbers("latency_us")
    grid = Grid([q_heads, batch, context], latency_us, work_us).fixed(heads.q_heads)
    if heads.head_dim != wanted.head_dim or heads.kv_dtype != wanted.kv_dtype:
        ratio = wanted.kv_bytes / wanted.kv_heads / (heads.kv_bytes / heads.kv_heads)
        grid = grid.scaled(ratio)
    grid.trust = max(grid.trust, found.trust)
    seen = np.minimum(context, float(heads.window or np.inf))
    moved = batch * seen * heads.kv_bytes
    if rows.rotating:
        return grid, wanted.kv_heads / heads.kv_heads, inf
    bandwidth = sustained_bytes_per_us(moved, latency_us, machine.peaks.hbm_bytes_per_s)
    return grid, wanted.kv_heads / heads.kv_heads, bandwidth
