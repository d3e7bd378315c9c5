"""What unequal contexts add to a decode step of FlashAttention 2.

vLLM runs it where there is neither FlashAttention 3 (Hopper) nor TensorRT-LLM's kernel (data-centre
Blackwell). A tile is one sequence and KV head. It walks over its keys on one multiprocessor, and no other
tile slows it down until all of them together read at the bandwidth of the memory. As long as more are at work
than that takes, nothing is lost; what is added is the end, when the last ones walk alone.

A context is split over several tiles by a rule that looks at the number of tiles and at the longest context
that the call may have (`num_splits_heuristic` of vllm-project/flash-attention). vLLM captures decode steps in
CUDA graphs for contexts of `max_model_len` tokens, so there the parts are so long that no usual context is
split. Calls outside graphs are split by their real longest context, and then end together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from math import ceil, exp, inf, log2
from typing import NamedTuple

import numpy as np

from simserve.latency.kernels.heads import Heads, StandIn, measured_rows
from simserve.latency.kernels.machine import Machine, not_faster_than, sustained_bytes_per_us
from simserve.latency.tables.grid import Float64, Grid
from simserve.latency.tables.roofline import Cost, analytic

# Decode attention with a KV cache of heads (MHA, GQA, MQA), from the table `attn_decode`.
#
# One new token for each of n sequences of equal length. Fewer or more KV heads than measured are run as a
# smaller or larger batch (a kernel splits its work by sequence and KV head alike).

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


QUERY_ROWS = 64
"""Query heads of a tile."""
MOST_SPLITS = 128
ENOUGH = 0.8
"""Share of the slots from which on nothing is split."""
GOOD = 0.85
"""Share of the best use of the slots with which a smaller number of splits is content."""
FADED = 8.0
"""Tiles in progress, from which on it is certain that there are some (e^-8)."""


class Lengths(NamedTuple):
    """Contexts of the sequences of a decode step (new token included)."""

    sequences: int
    total: int
    squares: int
    """Sum of the squares."""
    longest: Sequence[int]
    """The longest of them, descending: all, or `WalkTail.kept`."""


def keys_of_block(head_dim: int) -> int:
    """Return the keys that a tile reads at a time."""
    return 256 if head_dim <= 64 else 128 if head_dim <= 128 else 64


@cache
def splits(tiles: int, multiprocessors: int, blocks: int) -> int:
    """Return into how many parts `tiles` contexts of `blocks` blocks of keys are cut."""
    slots = 2 * multiprocessors
    if tiles >= ENOUGH * slots:
        return 1
    most = min(MOST_SPLITS, slots, blocks)
    use = {}
    for parts in range(1, most + 1):
        if parts == 1 or ceil(blocks / parts) != ceil(blocks / (parts - 1)):
            waves = tiles * parts / slots
            use[parts] = waves / ceil(waves)
    good = GOOD * max(use.values())
    return next(parts for parts, share in use.items() if share >= good)


@dataclass(frozen=True)
class WalkTail:
    """One layer's decode attention on one GPU."""

    launch_us: float
    start_us: float
    """Start of a tile, in which it reads nothing."""
    key_us: float
    """Time that a tile takes for one key when it is alone."""
    read_us: float
    """Time that all KV heads of one key take at the bandwidth that large calls sustain."""
    q_heads: int
    kv_heads: int
    head_dim: int
    multiprocessors: int
    longest: int
    """Tokens of the longest context that a captured call may have."""
    measured: tuple[int, ...] = ()
    """Numbers of sequences of which calls outside graphs were measured, ascending."""

    @cached_property
    def kept(self) -> int:
        """Longest contexts that decide: with more at work, memory sets the pace."""
        return ceil(self.key_us / self.read_us)

    def part_keys(self, sequences: int) -> int:
        """Return the keys of one part of a context in a captured step of so many sequences."""
        group = self.q_heads // self.kv_heads
        if group == 1:
            return self.longest  # only calls that pack the query heads of a group are split
        blocks = ceil(self.longest / keys_of_block(self.head_dim))
        tiles = sequences * self.kv_heads * ceil(group / QUERY_ROWS)
        return ceil(blocks / splits(tiles, self.multiprocessors, blocks)) * keys_of_block(self.head_dim)

    def is_split(self, sequences: int) -> bool:
        """Return True if a call outside graphs is split by its own contexts, and so has no end of note."""
        group = self.q_heads // self.kv_heads
        tiles = sequences * self.kv_heads * ceil(group / QUERY_ROWS)
        return group > 1 and tiles < ENOUGH * 2 * self.multiprocessors

    def equal_us(self, sequences: int, contexts: Float64, part: int) -> Float64:
        """Return the time of sequences of equal contexts (float64[n]) in parts of at most `part` keys."""
        whole, rest = np.divmod(contexts, part)
        slowest = self.key_us if sequences * self.kv_heads <= self.multiprocessors else 0.0
        longer = np.maximum(slowest, sequences * (whole + 1) * self.read_us)
        shorter = np.maximum(slowest, sequences * whole * self.read_us)
        walk_us = rest * longer + np.where(whole > 0, (part - rest) * shorter, 0.0)
        return self.launch_us + ceil(self._waves(sequences)) * self.start_us + walk_us

    def _waves(self, sequences: int) -> float:
        return sequences * self.kv_heads / self.multiprocessors

    def extra_us(self, lengths: Lengths, part: int) -> float:
        """Return what contexts of these lengths take beyond as many of their mean.

        Equal tiles all start together, wave by wave, and the memory rests meanwhile; unequal ones only once.
        """
        waves = self._waves(lengths.sequences)
        if waves > 1.0:
            return max(0.0, self._last_us(lengths) - (ceil(waves) - 1) * self.start_us)
        count = lengths.sequences
        mean = lengths.total // count
        equal_us = self._together_us(parts_of([mean] * min(count, self.kept), part, self.kept))
        unequal_us = self._together_us(parts_of(lengths.longest, part, self.kept))
        return unequal_us - equal_us

    def _together_us(self, parts: Sequence[int]) -> float:
        """Return the time beyond reading at full bandwidth of tiles that start together.

        Those longer than x are at work after x keys.
        """
        extra_us = 0.0
        for count, (length, shorter) in enumerate(zip(parts, [*parts[1:], 0], strict=True), 1):
            extra_us += (length - shorter) * max(0.0, self.key_us - count * self.read_us)
        return extra_us

    def _last_us(self, lengths: Lengths) -> float:
        """Return the same of more tiles than multiprocessors: each takes the next one as it is done.

        When none is left, every multiprocessor is somewhere in a tile, more likely in a long one; on average
        multiprocessors * sum(max(0, L - x)) / sum(L) of them have more than x keys to go.
        """
        count, total, squares, longest = lengths
        mean = total / count
        idle = self.key_us / self.read_us * self.kv_heads / self.multiprocessors
        keys = longest[0] - mean * (1 - idle / 2) - (squares / count - mean * mean) / (2 * idle * mean)
        keys -= self._unlikely_keys(lengths)
        return self.key_us * max(0.0, min(keys, self._waves(count) * (longest[0] - mean)))

    def _unlikely_keys(self, lengths: Lengths) -> float:
        """Return the keys by which that overrates the end: of the longest tiles, perhaps none is the last."""
        slope = self.multiprocessors / lengths.total
        ahead, keys = 0.0, 0.0
        for count, (length, shorter) in enumerate(
            zip(lengths.longest, [*lengths.longest[1:], 0], strict=True), 1
        ):
            if ahead > FADED:
                break
            then = ahead + slope * count * (length - shorter)
            keys += (exp(-ahead) - exp(-then)) / (slope * count)
            ahead = then
        return keys


def parts_of(longest: Sequence[int], part: int, most: int) -> list[int]:
    """Return the longest parts, descending and `most` at most, of contexts cut every `part` keys."""
    if longest[0] < part:
        return list(longest[:most])
    whole = sum(length // part for length in longest)
    rest = sorted((length % part for length in longest), reverse=True)
    return ([part] * min(whole, most) + [length for length in rest if length])[:most]
