"""Content of prompts as block ids: recoded densely, checked against the lengths, chained if need be.

In a `Trace` equal ids mean an equal prefix up to and including the block. Mooncake's ids have that
property already; ids of the content alone (which may follow different predecessors) are chained here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.core import Trace

# Pick rows of a trace with everything that belongs to them: blocks, sessions, labels.

Int64 = NDArray[np.int64]


def take_rows(trace: Trace, rows: Int64) -> Trace:
    """Return the trace with just `rows` (int64[m]), in that order; sessions and block ids renumbered densely.

    Arrivals are not shifted, nothing is noted in the origin: that is the caller's.
    """
    block_ids, block_offsets = _take_blocks(trace, rows)

    def pick(column: Int64 | None) -> Int64 | None:
        return None if column is None else column[rows]

    return replace(
        trace,
        arrival_ns=trace.arrival_ns[rows],
        prompt_tokens=trace.prompt_tokens[rows],
        output_tokens=trace.output_tokens[rows],
        max_tokens=pick(trace.max_tokens),
        priority=pick(trace.priority),
        session=None if trace.session is None else dense(trace.session[rows]),
        think_ns=pick(trace.think_ns),
        block_ids=block_ids,
        block_offsets=block_offsets,
        labels={name: column[rows] for name, column in trace.labels.items()},
    )


def dense(values: Int64) -> Int64:
    """Renumber `values` 0, 1, 2 ... in order of first appearance."""
    distinct, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    rank = np.empty(len(distinct), dtype=np.int64)
    rank[np.argsort(first, kind="stable")] = np.arange(len(distinct))
    return rank[inverse]


def spans(lengths: Int64) -> Int64:
    """Return int64[n + 1] offsets of consecutive pieces of these lengths."""
    return np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))


def within(lengths: Int64) -> Int64:
    """Return 0, 1, 2 ... inside each consecutive piece (int64[sum of lengths])."""
    offsets = spans(lengths)
    return np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)


def _take_blocks(trace: Trace, rows: Int64) -> tuple[Int64 | None, Int64 | None]:
    if trace.block_ids is None or trace.block_offsets is None:
        return None, None
    lengths = np.diff(trace.block_offsets)[rows]
    places = np.repeat(trace.block_offsets[rows], lengths) + within(lengths)
    return dense(trace.block_ids[places]), spans(lengths)


SIZES = (16, 32, 64, 128, 256, 512, 1024, 2048)
"""Block sizes tried when a file does not say."""
_ENOUGH_ROWS = 10
"""Rows that must all agree before an unusual size is inferred."""


@dataclass(frozen=True)
class Blocks:
    """Block ids of all rows one after another; row i owns ids[offsets[i]:offsets[i + 1]]."""

    ids: Int64
    offsets: Int64

    @property
    def counts(self) -> Int64:
        """int64[n], blocks of each row."""
        return np.diff(self.offsets)


def recode(lists: list[list[Any]]) -> Blocks:
    """Return ids numbered 0, 1, 2 ... by first appearance, whatever they were: any integer, or text.

    Two ids become equal only if they are equal in full, so nothing is lost above bit 31 or bit 63.
    """
    flat = [value for ids in lists for value in ids]
    codes: dict[Any, int] = {}
    ids = np.array([codes.setdefault(value, len(codes)) for value in flat], dtype=np.int64)
    return Blocks(ids, spans(np.array([len(ids) for ids in lists], dtype=np.int64)))


def fits(tokens: Int64, counts: Int64, size: int) -> str | None:
    """Return how all rows count their blocks: "ceil" (a partial last block has an id), "floor", or None."""
    if (counts == -(-tokens // size)).all():
        return "ceil"
    return "floor" if (counts == tokens // size).all() else None


def infer_size(tokens: Int64, counts: Int64, usual: int) -> int:
    """Return the block size: the usual one, unless many rows all fit just one other of `SIZES` and not it."""
    if fits(tokens, counts, usual):
        return usual
    others = [size for size in SIZES if fits(tokens, counts, size)]
    return others[0] if len(others) == 1 and len(tokens) >= _ENOUGH_ROWS else usual


def misfit(tokens: Int64, counts: Int64, size: int) -> int:
    """Return the first row that breaks the rounding (ceil or floor) which most rows follow."""
    ceil_bad = counts != -(-tokens // size)
    floor_bad = counts != tokens // size
    bad = ceil_bad if ceil_bad.sum() <= floor_bad.sum() else floor_bad
    return int(np.argmax(bad))


def cut(blocks: Blocks, most: Int64) -> Blocks:
    """Return the blocks with row i cut to at most most[i]."""
    keep = within(blocks.counts) < np.repeat(most, blocks.counts)
    return Blocks(dense(blocks.ids[keep]), spans(np.minimum(blocks.counts, most)))


def chain(blocks: Blocks) -> tuple[Blocks, bool]:
    """Return blocks whose ids stand for the whole prefix, and whether they had to be renumbered for it."""
    before = np.concatenate(([-1], blocks.ids[:-1])) if len(blocks.ids) else blocks.ids
    starts = blocks.offsets[:-1][blocks.counts > 0]
    before[starts] = -1
    distinct, first = np.unique(blocks.ids, return_index=True)
    if (before == before[first][np.searchsorted(distinct, blocks.ids)]).all():
        return blocks, False
    codes: dict[tuple[int, int], int] = {}
    chained = np.empty_like(blocks.ids)
    parent = -1
    for i, (value, predecessor) in enumerate(zip(blocks.ids.tolist(), before.tolist(), strict=True)):
        parent = -1 if predecessor < 0 else parent
        parent = codes.setdefault((parent, value), len(codes))
        chained[i] = parent
    return Blocks(chained, blocks.offsets), True


def split_fills(blocks: Blocks, tokens: Int64, size: int) -> tuple[Blocks, Int64]:
    """Tell apart the uses of one id for different numbers of tokens; also return the rows concerned.

    A full block and a partial one are not the same content, whatever a file calls them.
    """
    row = np.repeat(np.arange(len(tokens)), blocks.counts)
    fill = np.clip(tokens[row] - size * within(blocks.counts), 0, size)
    distinct, first = np.unique(blocks.ids, return_index=True)
    odd = fill != fill[first][np.searchsorted(distinct, blocks.ids)]
    if not odd.any():
        return blocks, row[:0]
    return Blocks(dense(blocks.ids * (size + 1) + fill), blocks.offsets), np.unique(row[odd])
