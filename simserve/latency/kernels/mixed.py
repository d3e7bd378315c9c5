"""Decoding sequences beside a prompt chunk where that was measured: the rule, put right by the measurements.

As in `cached`, not the time is interpolated but measured / ruled, whose logarithm is linear between measured
points in log2 of (sequences, their context, cached tokens + 1, new tokens) and constant outside. The table
`attn_mixed`, which only `simserve profile run` makes, has one chunk; several count as one of their tokens
together, on the cached tokens that these have on average.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from simserve.core import Chunk
from simserve.latency.grid import Grid
from simserve.latency.kernels.heads import Heads
from simserve.latency.kernels.machine import Machine
from simserve.latency.profile_file import ProfileTable

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
