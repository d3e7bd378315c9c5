"""Decoding sequences beside a prompt chunk where that was measured: the rule, put right by the measurements.

As in `cached`, not the time is interpolated but measured / ruled, whose logarithm is linear between measured
points in log2 of (sequences, their context, cached tokens + 1, new tokens) and constant outside. The table
`attn_mixed`, which only `simserve profile run` makes, has one chunk; several count as one of their tokens
together, on the cached tokens that these have on average.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from simserve.core import Chunk
from simserve.latency.kernels.decode import DecodeAttention
from simserve.latency.kernels.heads import Heads
from simserve.latency.kernels.machine import KernelTraits, Machine
from simserve.latency.tables.grid import EXTRAPOLATED, Float64, Grid
from simserve.latency.tables.profiles import ProfileTable
from simserve.latency.tables.roofline import Cost

# What cached tokens add to a prefill: the tile rule.
#
# A kernel cuts the new queries into tiles; each tile walks over all keys before it, cached or new. A cached
# key costs a tile what a new one does, and that price is in the table of prompts without cache: a prompt of
# L tokens has L / tile_rows tiles, which walk L / 2 keys on average, plus a masked diagonal. So the cached
# tokens add waves * key_us * cached, where `waves` is the number of tiles that each multiprocessor works
# off. Kernels that split long contexts share the work evenly; FlashAttention 2 does not: its waves are
# whole.

DIAGONAL_KEYS = 290
"""Keys whose cost equals a tile's masked diagonal and start (measured prompts of 512-2048 tokens on RTX
4090: a prompt of 2048 takes as long as tiles that walk 1024 + 266 cached keys; 311 on RTX PRO 6000)."""


@dataclass(frozen=True)
class TileWalk:
    """Tiles of one prefill call over a grid of (batch, new tokens)."""

    grid: Grid
    traits: KernelTraits
    q_heads: int
    batch_factor: float = 1.0
    """Batch of the grid that one sequence stands for."""

    def waves(self, batch: float, new: float) -> float:
        """Return how many tiles a multiprocessor works off."""
        if self.traits.splits_contexts:
            return batch * self.q_heads * new / self.traits.tile_rows / self.traits.multiprocessors
        tiles = batch * self.q_heads * ceil(new / self.traits.tile_rows)
        return float(ceil(tiles / self.traits.multiprocessors))

    def launch_us(self) -> float:
        """Return the time of a prompt of one token."""
        return self.grid.at_one(self.batch_factor, 1.0)

    def key_us(self) -> float:
        """Return microseconds that a tile takes for one key: the median over the longest prompts measured."""
        lengths = self.grid.axes[-1]
        estimates = [
            (self.grid.at_one(self.batch_factor, length) - self.launch_us())
            / (self.waves(1, length) * (length / 2 + DIAGONAL_KEYS))
            for length in lengths[lengths >= lengths[-1] / 3].tolist()
        ]
        return max(0.0, median(estimates))


AXES = ("batch", "kv_len", "prefix_len", "q_len")


class MeasuredMixes:
    """How much longer attention of such a step takes than the rule says, for one kind of layer."""

    def __init__(self, grid: Grid) -> None:
        """`grid` has the ratio over sequences, context, cached tokens + 1 and new tokens."""
        self._grid = grid

    def ratio(self, sequences: int, context: float, chunks: Sequence[Chunk]) -> tuple[float, int]:
        """Return measured / ruled, and its provenance."""
        new = sum([chunk.tokens for chunk in chunks])
        cached = sum([chunk.tokens * chunk.cached for chunk in chunks]) / new
        at = (float(sequences), max(1.0, context), cached + 1.0, float(new))
        return self._grid.at_one(*at), int(self._grid.tagged(*at)[1])


def measured_mixes(
    machine: Machine, heads: Heads, ruled_us: Callable[[int, float, int, int], float]
) -> MeasuredMixes | None:
    """Return what was measured for these very heads, None if nothing was.

    `ruled_us` gives microseconds of (sequences, context, cached tokens, new tokens).
    """
    shape = {name: getattr(heads, name) for name in ("q_heads", "kv_heads", "head_dim", "window")}
    rows = machine.rows("attn_mixed", dtype=heads.dtype, kv_dtype=heads.kv_dtype, **shape)
    return None if rows is None else mixes_of(rows, ruled_us)


def mixes_of(rows: ProfileTable, ruled_us: Callable[[int, float, int, int], float]) -> MeasuredMixes:
    """Return what rows of `attn_mixed` for one shape of heads say."""
    columns = [rows.numbers(name) for name in AXES]
    shapes = zip(*(column.astype(int).tolist() for column in columns), strict=True)
    ruled = np.array([ruled_us(*it) for it in shapes])
    columns[2] = columns[2] + 1.0
    ratio = rows.numbers("latency_us") / ruled
    return MeasuredMixes(Grid(columns, ratio, lambda a, b, c, d: 0.0 * (a + b + c + d)))


# Decoding sequences and prompt chunks in one call of FlashAttention 2, which splits no context.
#
# Each query head of a decoding sequence is a tile of its own that walks the whole context, among the tiles of
# the chunks. The multiprocessors share the work out as it comes, so whole waves no longer count; instead they
# end apart, by a share of the longest walk. The kernel starts as many blocks for every sequence as the
# longest
# chunk needs; those without queries end at once, but each costs its start.
#
# The constants were found on an RTX 4090 and judged on an RTX PRO 6000 (`docs/latency.md`).

DECODE_KEYS = 150
"""Keys whose cost equals the start of a decoding sequence's tile."""
UNEVEN_SHARE = 0.43
"""Share of the longest tile's walk by which the call ends later than evenly shared work would."""
EMPTY_BLOCK_US = 0.32
"""Time that a multiprocessor spends on a block without queries."""
GROUP_SPREAD = 1.2
"""How soon query heads of one group stop finding each other's keys in L2: they share while sequences *
group * GROUP_SPREAD stays below the number of multiprocessors."""


class DecodesBeside(NamedTuple):
    """What decoding sequences bring into a call with chunks, at each mean context (float64[n])."""

    work: Cost
    """Their work, evenly shared out."""
    longest_us: Float64
    """Walk of one of their tiles."""
    launch_us: float
    empty_us: float
    """What each block of the longest chunk beyond the first costs in blocks without queries."""


class ChunkBeside(NamedTuple):
    """What one chunk brings into a call with decoding sequences."""

    work_us: float
    """Its work, evenly shared out, and its share of the launch."""
    longest_us: float
    """Walk of its longest tile."""
    blocks: int
    """Blocks of queries."""


NO_CHUNK = ChunkBeside(0.0, 0.0, 1)


def call_time(chunks: Any, work: Any, longest: Any, least: Any, empty: Any) -> Any:
    """Return the time of a whole call, in the unit of its arguments.

    `chunks` is what the chunks take alone, `work` all work evenly shared out, `longest` the longest walk,
    `least` the decoding sequences' walk with the launch, `empty` the time for blocks without queries.
    """
    return max(chunks, work + UNEVEN_SHARE * longest, least) + empty


@dataclass(frozen=True)
class MixedCall:
    """The rule for one layer's attention on one GPU."""

    walk: TileWalk
    decode: DecodeAttention
    key_us: float

    def decodes(self, sequences: int, context: Float64) -> DecodesBeside:
        """Return what `sequences` sequences at each mean context (float64[n]) bring in.

        Heads of a group read the same keys again once they no longer run side by side.
        """
        traits, heads = self.walk.traits, self.decode.heads
        seen = self.decode.attended(context)
        longest_us = self.key_us * (seen + DECODE_KEYS)
        tiles = sequences * heads.q_heads / traits.multiprocessors
        group = heads.q_heads / heads.kv_heads
        apart = min(group, max(1.0, GROUP_SPREAD * group * sequences / traits.multiprocessors))
        head_bytes = sequences * seen * heads.kv_bytes / heads.kv_heads
        reads = np.where(head_bytes > traits.l2_bytes, apart, 1.0)
        read_us = reads * head_bytes * heads.kv_heads / self.decode.bytes_per_us
        tags = np.full(len(seen), max(EXTRAPOLATED, self.walk.grid.trust), np.uint8)
        work = Cost(np.maximum(tiles * longest_us, read_us), tags)
        return DecodesBeside(work, longest_us, self.walk.launch_us(), EMPTY_BLOCK_US * tiles)

    def chunk(self, batch: int, new: int, cached_seen: float, alone_us: float) -> ChunkBeside:
        """Return what one of `batch` equal chunks brings in that takes `alone_us` as their share."""
        traits, heads = self.walk.traits, self.decode.heads
        blocks = ceil(new / traits.tile_rows)
        tiles = batch * heads.q_heads * blocks / traits.multiprocessors
        launch_us = self.walk.launch_us() / batch
        evenly = tiles / self.walk.waves(batch, new)
        own = min(new, heads.window) if heads.window else new
        work_us = launch_us + max(0.0, alone_us - launch_us) * evenly
        return ChunkBeside(work_us, self.key_us * (cached_seen + own), blocks)
