"""Pick rows of a trace with everything that belongs to them: blocks, sessions, labels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from simserve.core import Trace

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
