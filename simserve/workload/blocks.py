"""Content of prompts as block ids: recoded densely, checked against the lengths, chained if need be.

In a `Trace` equal ids mean an equal prefix up to and including the block. Mooncake's ids have that
property already; ids of the content alone (which may follow different predecessors) are chained here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.workload.select import dense, spans, within

Int64 = NDArray[np.int64]
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
