"""Prefill attention with a KV cache of heads, from the table `attn_prefill`.

`walk` says how cached tokens are costed, `cached` how measured prompts on a prefix put that right, `beside`
what decoding sequences cost in the same call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from simserve.latency.kernels.decode import QUERY_ROWS, DecodeAttention, WalkTail
from simserve.latency.kernels.heads import Heads, measured_rows
from simserve.latency.kernels.machine import Machine
from simserve.latency.kernels.mixed import (
    DECODE_KEYS,
    NO_CHUNK,
    ChunkBeside,
    DecodesBeside,
    MixedCall,
    TileWalk,
    call_time,
)
from simserve.latency.tables.grid import ANALYTIC, EXTRAPOLATED, INTERPOLATED, MEASURED, Float64, Grid
from simserve.latency.tables.profiles import ProfileTable
from simserve.latency.tables.roofline import Cost, analytic

# Prompts on a cached prefix where they were measured: the rule of `walk`, put right by the measurements.
#
# We interpolate measured / ruled time, not time itself: its logarithm is linear between measured points in
# log2 of (prompts, new tokens, cached tokens) and constant outside. So the rule decides between the points
# and beyond them, and a measured point returns its measured time. Public tables have no such rows; `simserve
# profile run` makes them.


class CachedPrompts:
    """How much longer prompts on a cached prefix take than the rule says."""

    def __init__(self, rows: ProfileTable, ruled_us: Callable[[int, int, int], float]) -> None:
        """`ruled_us` gives microseconds of (batch, new tokens, cached tokens)."""
        columns = [rows.numbers(name) for name in ("batch", "q_len", "prefix_len")]
        shapes = zip(*(column.astype(int).tolist() for column in columns), strict=True)
        ruled = np.array([ruled_us(*shape) for shape in shapes])
        ratio = rows.numbers("latency_us") / ruled
        self._grid = Grid(columns, ratio, lambda batch, new, cached: 0.0 * batch)

    def correct(self, ruled_us: float, batch: int, new: int, cached: int) -> tuple[float, int]:
        """Return the time that follows from what the rule says, and its provenance."""
        ratio, tag = self._grid.tagged(float(batch), float(new), float(cached))
        return ruled_us * float(ratio), int(tag)


def without_prefix(rows: ProfileTable) -> ProfileTable:
    """Return the prompts that had nothing cached."""
    return rows.where(rows.numbers("prefix_len") == 0) if "prefix_len" in rows.names else rows


def on_a_prefix(rows: ProfileTable) -> ProfileTable | None:
    """Return the prompts on a cached prefix, None if there are none."""
    if "prefix_len" not in rows.names:
        return None
    found = rows.where(rows.numbers("prefix_len") > 0)
    return found if len(found) else None


# Attention without a table: the roofline at the named efficiencies, tagged analytic.


@dataclass(frozen=True)
class EstimatedAttention:
    """Decode and prefill from FLOPs per (query, key) pair and bytes per context token and query."""

    machine: Machine
    flops_per_pair: float
    bytes_per_key: float
    bytes_per_query: float
    dtype: str
    flops_per_query: float = 0.0

    def cost(self, sequences: int, context: Float64) -> Cost:
        """Return the cost of one new token for each of `sequences` sequences."""
        flops = sequences * (context * self.flops_per_pair + self.flops_per_query)
        moved = sequences * (context * self.bytes_per_key + self.bytes_per_query)
        return analytic(self.machine.peaks.analytic_us(flops, moved, self.dtype))

    def chunk_us(self, batch: int, new: int, cached: int) -> tuple[float, int]:
        """Return microseconds, and their provenance, of one of `batch` equal chunks."""
        pairs = new * cached + new * (new + 1) / 2
        flops = batch * (pairs * self.flops_per_pair + new * self.flops_per_query)
        moved = batch * ((new + cached) * self.bytes_per_key + new * self.bytes_per_query)
        return float(self.machine.peaks.analytic_us(np.float64(flops), moved, self.dtype)) / batch, ANALYTIC

    def fresh(self, batch: int, lengths: Float64) -> Cost:
        """Return what `chunk_us` says of prompts of these lengths without cached tokens."""
        pairs = lengths * (lengths + 1) / 2
        flops = batch * (pairs * self.flops_per_pair + lengths * self.flops_per_query)
        moved = batch * lengths * (self.bytes_per_key + self.bytes_per_query)
        return analytic(self.machine.peaks.analytic_us(flops, moved, self.dtype) / batch)

    def decode_beside(self, sequences: int, context: Float64) -> None:
        """Return None: decoding sequences cost the same beside prompt chunks."""
        return

    def chunk_beside(self, batch: int, new: int, cached: int) -> ChunkBeside:
        """Return what the chunk takes alone."""
        return NO_CHUNK._replace(work_us=self.chunk_us(batch, new, cached)[0])


class PrefillAttention:
    """Prefill attention of one layer on one GPU."""

    def __init__(self, machine: Machine, heads: Heads, decode: DecodeAttention) -> None:
        """`decode` is the same layer's decode kernel: the limit of one new token."""
        self.machine = machine
        self.heads = heads
        self.decode = decode
        found = machine.cached(("attn_prefill", heads), lambda: _prefill_grid(machine, heads))
        self._walk: TileWalk | None = None
        self._mixed: MixedCall | None = None
        self._cached: CachedPrompts | None = None
        # Tables of mixed calls hold each chunk, and each batch of decodes, hundreds of times.
        self._one_chunk = cache(
            lambda new, old: (self.chunk_us(1, new, old)[0], self.chunk_beside(1, new, old))
        )
        self._decodes = cache(lambda count, context: self.decode_beside(count, np.array([float(context)])))
        if found is None:
            machine.missing("attn_prefill", f"prefill attention of {heads}")
        else:
            self._walk = TileWalk(found[0], machine.traits, heads.q_heads, found[1])
            self._key_us = self._walk.key_us()
            if not machine.traits.splits_contexts:
                self._mixed = MixedCall(self._walk, decode, self._key_us)
            if found[2] is not None:
                self._cached = CachedPrompts(found[2], self.ruled_us)

    def chunk_us(self, batch: int, new: int, cached: int) -> tuple[float, int]:
        """Return microseconds, and their provenance, of one of `batch` equal chunks computed together."""
        walk = self._walk
        if walk is None:
            return self._estimate_us(batch, new, cached), ANALYTIC
        if new == 1 and cached:
            return self.decode.one_us(batch, cached + 1) / batch, max(INTERPOLATED, walk.grid.trust)
        if not cached:
            return walk.grid.at_one(batch * walk.batch_factor, float(new)) / batch, provenance(
                walk, batch, new
            )
        ruled_us = self.ruled_us(batch, new, cached)
        if self._cached is None:
            return ruled_us / batch, max(EXTRAPOLATED, walk.grid.trust)
        us, tag = self._cached.correct(ruled_us, batch, new, cached)
        return us / batch, max(tag, walk.grid.trust)

    def ruled_us(self, batch: int, new: int, cached: int) -> float:
        """Return what `batch` chunks on a cached prefix take by the tile rule; needs a table of prompts."""
        walk = self._walk
        assert walk is not None
        fresh_us = walk.grid.at_one(batch * walk.batch_factor, float(new))
        seen = self._cached_keys_seen(new, cached)
        walk_us = walk.waves(batch, new) * self._key_us * seen
        return max(fresh_us + walk_us, self.decode.one_us(batch, seen + new))

    def _cached_keys_seen(self, new: int, cached: int) -> float:
        """Return how many cached keys a new query attends on average."""
        window = self.heads.window
        if not self.heads.chunked:
            return cached_keys_seen(new, cached, window)
        # Only the queries that still lie in the chunk where the cached tokens end see any of them.
        within = min(new, -cached % window or window)
        return within * (cached % window) / new if cached % window else 0.0

    def fresh(self, batch: int, lengths: Float64) -> Cost:
        """Return what `chunk_us` says of prompts of these lengths without cached tokens, vectorised."""
        walk = self._walk
        if walk is None:
            us = np.array([self._estimate_us(batch, int(new), 0) for new in lengths])
            return Cost(us, np.full(len(lengths), ANALYTIC, np.uint8))
        us, tags = walk.grid.tagged(batch * walk.batch_factor, lengths)
        return Cost(us / batch, tags)

    def decode_beside(self, sequences: int, context: Float64) -> DecodesBeside | None:
        """Return what decoding sequences bring into a call with prompt chunks; None if they cost the same."""
        return self._mixed.decodes(sequences, context) if self._mixed else None

    def tail(self, max_model_len: int) -> WalkTail | None:
        """Return what unequal contexts of decodes add, in an engine started with `max_model_len`.

        None where the kernel shares its work evenly, where a window keeps contexts equal, where a
        multiprocessor holds more than one tile (A100), and without tables.
        """
        if self._mixed is None or self.heads.window or self.machine.traits.tile_rows != QUERY_ROWS:
            return None
        bytes_per_us = min(self.decode.bytes_per_us, self.machine.peaks.hbm_bytes_per_s / 1e6)
        heads = self.heads
        return WalkTail(
            self.decode.launch_us,
            DECODE_KEYS * self._key_us,
            self._key_us,
            heads.kv_bytes / bytes_per_us,
            heads.q_heads,
            heads.kv_heads,
            heads.head_dim,
            self.machine.traits.multiprocessors,
            max_model_len,
            self.decode.measured_sequences(),
        )

    def mixed_ruled_us(self, sequences: int, context: float, cached: int, new: int) -> float:
        """Return what one chunk beside `sequences` decodes takes by the rule."""
        alone_us, chunk = self._one_chunk(new, cached)
        beside = self._decodes(sequences, context)
        if beside is None:
            return alone_us + self.decode.one_us(sequences, context)
        longest_us = float(beside.longest_us[0])
        return call_time(
            alone_us,
            float(beside.work.us[0]) + chunk.work_us,
            max(longest_us, chunk.longest_us),
            beside.launch_us + longest_us,
            (chunk.blocks - 1) * beside.empty_us,
        )

    def chunk_beside(self, batch: int, new: int, cached: int) -> ChunkBeside:
        """Return what one of `batch` equal chunks brings into a call with decoding sequences."""
        alone_us = self.chunk_us(batch, new, cached)[0]
        if self._mixed is None:
            return NO_CHUNK._replace(work_us=alone_us)
        return self._mixed.chunk(batch, new, self._cached_keys_seen(new, cached), alone_us)

    def _estimate_us(self, batch: int, new: int, cached: int) -> float:
        window = self.heads.window or new + cached
        own = new * (new + 1) / 2 if new <= window else window * (window + 1) / 2 + (new - window) * window
        pairs = own + new * self._cached_keys_seen(new, cached)
        queries = self.heads.q_heads * self.heads.head_dim
        moved = (min(cached, window) + new) * self.heads.kv_bytes + new * 4.0 * queries
        us = self.machine.peaks.analytic_us(4.0 * queries * pairs * batch, moved * batch, self.heads.dtype)
        return us / batch


def cached_keys_seen(new: int, cached: int, window: int) -> float:
    """Return how many cached keys one of `new` queries attends on average, under a window (0 = none)."""
    if not window or cached + new <= window:
        return float(cached)
    # The i-th new query sees min(cached, window - i) cached keys, down to none.
    whole = min(new, max(0, window - cached))
    falling = min(new, window) - whole
    first, last = min(cached, window - whole), window - whole - falling
    return (whole * cached + falling * (first + last) / 2) / new


def provenance(walk: TileWalk, batch: int, new: int) -> int:
    """Return where the time of `batch` prompts of `new` tokens without cache comes from."""
    batches, lengths = walk.grid.axes
    if new > lengths[-1] or batch * walk.batch_factor > batches[-1]:
        return max(EXTRAPOLATED, walk.grid.trust)
    hit = new in lengths and batch * walk.batch_factor in batches
    return max(MEASURED if hit else INTERPOLATED, walk.grid.trust)


def _prefill_grid(machine: Machine, wanted: Heads) -> tuple[Grid, float, ProfileTable | None] | None:
    """Return the grid over (batch, new tokens), the batch that one sequence stands for, and the rows of
    prompts on a cached prefix if these very heads were measured with one."""
    found = measured_rows(machine, "attn_prefill", wanted)
    if found is None:
        return None
    rows, heads = without_prefix(found.rows), found.heads
    if not len(rows):
        return None

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
    cached = on_a_prefix(found.rows.select(q_heads=wanted.q_heads)) if heads == wanted else None
    return grid, wanted.kv_heads / heads.kv_heads, cached
