"""Prefill attention with a KV cache of heads, from the table `attn_prefill`, and its rule for cached
prefixes.

The table has no cached prefixes. A kernel cuts the new tokens into tiles of queries; each tile walks over
all keys before it, cached or new. A cached token therefore costs each tile the same as a new key does,
and that cost is in the table: a prompt of L tokens has L / tile tiles that walk L / 2 keys on average,
plus a diagonal. So t(new, cached) = t(new, 0) + waves * key_us * cached, where `waves` is how many tiles
each multiprocessor works off. Kernels that split long contexts (FlashAttention 3, TensorRT-LLM's) share
the work evenly; FlashAttention 2, which vLLM uses elsewhere, does not: its waves are whole.
"""

from __future__ import annotations

from math import ceil
from statistics import median

import numpy as np

from simserve.latency.costs import Cost
from simserve.latency.grid import ANALYTIC, EXTRAPOLATED, INTERPOLATED, MEASURED, Float64, Grid
from simserve.latency.kernels.attention import DecodeAttention
from simserve.latency.kernels.heads import Heads, measured_rows
from simserve.latency.kernels.machine import Machine

DIAGONAL_KEYS = 290
"""Keys whose cost equals a tile's masked diagonal and start (measured prompts of 512-2048 tokens on RTX
4090: a prompt of 2048 takes as long as tiles that walk 1024 + 266 cached keys; 311 on RTX PRO 6000)."""
DECODE_KEYS = 200
"""The same for a decoding sequence inside a mixed FlashAttention 2 call (fitted on RTX 4090, judged on
others)."""
GROUP_SPREAD = 1.2
"""How soon query heads of one group stop finding each other's keys in L2 (fitted on RTX 4090): they share
while sequences * group * GROUP_SPREAD stays below the number of multiprocessors."""


class PrefillAttention:
    """Prefill attention of one layer on one GPU."""

    def __init__(self, machine: Machine, heads: Heads, decode: DecodeAttention) -> None:
        """`decode` is the same layer's decode kernel: the limit of one new token."""
        self.machine = machine
        self.heads = heads
        self.decode = decode
        found = machine.cached(("attn_prefill", heads), lambda: _prefill_grid(machine, heads))
        if found is None:
            machine.missing("attn_prefill", f"prefill attention of {heads}")
        self._grid: Grid | None = found[0] if found else None
        self._batch_factor: float = found[1] if found else 1.0
        self._key_us = self._time_per_key() if self._grid else 0.0

    def chunk_us(self, batch: int, new: int, cached: int) -> tuple[float, int]:
        """Return microseconds, and their provenance, of one of `batch` equal chunks computed together."""
        seen = self._cached_keys_seen(new, cached)
        if self._grid is None:
            return self._estimate_us(batch, new, cached), ANALYTIC
        if new == 1 and cached:
            return self.decode.one_us(batch, cached + 1) / batch, max(INTERPOLATED, self._grid.trust)
        fresh_us = self._grid.at_one(batch * self._batch_factor, float(new))
        if not cached:
            return fresh_us / batch, self._tag(batch, new)
        walk_us = self._waves(batch, new) * self._key_us * seen
        reading_us = self.decode.one_us(batch, seen + new)
        return max(fresh_us + walk_us, reading_us) / batch, max(EXTRAPOLATED, self._grid.trust)

    def decode_beside(self, sequences: int, context: Float64) -> tuple[Cost, Float64] | None:
        """Return what decoding sequences add to a step with prompt chunks, and the least the call takes.

        None if the kernel runs them as it would alone. FlashAttention 2 gives each query head of each
        sequence a tile of its own, which walks the whole context: the longest walk bounds the call from
        below, and heads of a group read the same keys again once they no longer run side by side.
        """
        traits = self.machine.traits
        if traits.splits_contexts or self._grid is None:
            return None
        seen = np.minimum(context, float(self.heads.window or np.inf))
        tiles = sequences * self.heads.q_heads
        walk_us = tiles / traits.multiprocessors * self._key_us * (seen + DECODE_KEYS)
        group = self.heads.q_heads / self.heads.kv_heads
        apart = min(group, max(1.0, GROUP_SPREAD * group * sequences / traits.multiprocessors))
        head_bytes = sequences * seen * self.heads.kv_bytes / self.heads.kv_heads
        reads = np.where(head_bytes > traits.l2_bytes, apart, 1.0)
        read_us = reads * head_bytes * self.heads.kv_heads / self.decode.bytes_per_us
        longest_us = self._grid.at_one(self._batch_factor, 1.0) + self._key_us * seen
        tag = np.full(len(seen), max(EXTRAPOLATED, self._grid.trust), np.uint8)
        return Cost(np.maximum(walk_us, read_us), tag), longest_us

    def _waves(self, batch: float, new: float) -> float:
        """Return how many tiles a multiprocessor works off."""
        traits = self.machine.traits
        tiles = batch * self.heads.q_heads * new / traits.tile_rows
        if traits.splits_contexts:
            return tiles / traits.multiprocessors
        whole = batch * self.heads.q_heads * ceil(new / traits.tile_rows)
        return float(ceil(whole / traits.multiprocessors))

    def _time_per_key(self) -> float:
        """Return microseconds that a tile takes for one key: the median over the longest prompts measured."""
        assert self._grid is not None
        lengths = self._grid.axes[-1]
        launch_us = self._grid.at_one(self._batch_factor, 1.0)
        estimates = [
            (self._grid.at_one(self._batch_factor, length) - launch_us)
            / (self._waves(1, length) * (length / 2 + DIAGONAL_KEYS))
            for length in lengths[lengths >= lengths[-1] / 3].tolist()
        ]
        return max(0.0, median(estimates))

    def _cached_keys_seen(self, new: int, cached: int) -> float:
        """Return how many cached keys a query attends on average."""
        window = self.heads.window
        if not window or cached + new <= window:
            return float(cached)
        # The i-th new query sees min(cached, window - i) cached keys, down to none.
        whole = min(new, max(0, window - cached))
        falling = min(new, window) - whole
        first, last = min(cached, window - whole), window - whole - falling
        return (whole * cached + falling * (first + last) / 2) / new

    def _estimate_us(self, batch: int, new: int, cached: int) -> float:
        window = self.heads.window or new + cached
        own = new * (new + 1) / 2 if new <= window else window * (window + 1) / 2 + (new - window) * window
        pairs = own + new * self._cached_keys_seen(new, cached)
        queries = self.heads.q_heads * self.heads.head_dim
        moved = (min(cached, window) + new) * self.heads.kv_bytes + new * 4.0 * queries
        us = self.machine.peaks.analytic_us(4.0 * queries * pairs * batch, moved * batch, self.heads.dtype)
        return us / batch

    def _tag(self, batch: int, new: int) -> int:
        assert self._grid is not None
        batches, lengths = self._grid.axes
        if new > lengths[-1] or batch * self._batch_factor > batches[-1]:
            return max(EXTRAPOLATED, self._grid.trust)
        hit = new in lengths and batch * self._batch_factor in batches
        return max(MEASURED if hit else INTERPOLATED, self._grid.trust)


def _prefill_grid(machine: Machine, wanted: Heads) -> tuple[Grid, float] | None:
    """Return the grid over (batch, new tokens) and the batch that one sequence stands for."""
    found = measured_rows(machine, "attn_prefill", wanted)
    if found is None:
        return None
    rows, heads = found.rows, found.heads

    def work_us(q_heads, batch, length):
        span = heads.window or 1e12
        inside = (length + span - abs(length - span)) / 2.0
        pairs = inside * (inside + 1) / 2 + (length - inside) * span
        queries = q_heads * heads.head_dim
        moved = batch * length * (heads.kv_bytes + 4.0 * queries)
        return machine.peaks.us(4.0 * queries * batch * pairs, moved, heads.dtype)

    columns = [rows.numbers(name) for name in ("q_heads", "batch", "q_len")]
    grid = Grid(columns, rows.numbers("latency_us"), work_us).fixed(heads.q_heads)
    if heads.head_dim != wanted.head_dim:
        grid = grid.scaled(wanted.head_dim / heads.head_dim)
    grid.trust = max(grid.trust, found.trust)
    return grid, wanted.kv_heads / heads.kv_heads
