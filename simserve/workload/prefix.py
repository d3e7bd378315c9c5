"""How much of a trace's prompts an unbounded prefix cache would find: the ceiling for any real one.

Requests in trace order; a block is a hit if an earlier request had it and all blocks before it in the
same prompt were hits; all blocks of a request become known at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simserve.core import Trace
from simserve.workload.select import Int64, within


@dataclass(frozen=True)
class PrefixStats:
    """Reuse of prompt content with a cache that forgets nothing."""

    block_tokens: int
    distinct_blocks: int
    referenced_blocks: int
    token_hit_rate: float
    """Hit tokens over prompt tokens."""
    block_hit_rate: float
    """Hit blocks over referenced blocks."""
    requests_with_hit: int
    requests_fully_hit: int
    """Requests all of whose blocks are known (an engine still computes at least one token)."""


def hit_blocks(trace: Trace) -> Int64:
    """Return int64[n]: leading blocks of each request that earlier requests had; 0 without block ids."""
    if trace.block_ids is None or trace.block_offsets is None:
        return np.zeros(len(trace), dtype=np.int64)
    counts = np.diff(trace.block_offsets)
    row = np.repeat(np.arange(len(counts)), counts)
    first_row = np.empty(int(trace.block_ids.max(initial=-1)) + 1, dtype=np.int64)
    first_row[trace.block_ids[::-1]] = row[::-1]
    missed = first_row[trace.block_ids] == row
    run = np.where(missed, within(counts), np.repeat(counts, counts))
    hits = np.zeros(len(counts), dtype=np.int64)
    filled = counts > 0
    if filled.any():
        hits[filled] = np.minimum.reduceat(run, trace.block_offsets[:-1][filled])
    return hits


def prefix_stats(trace: Trace) -> PrefixStats | None:
    """Return the reuse of a trace, or None if it has no block ids."""
    if trace.block_ids is None or trace.block_offsets is None:
        return None
    hits = hit_blocks(trace)
    tokens = np.minimum(hits * trace.block_tokens, trace.prompt_tokens)
    counts = np.diff(trace.block_offsets)
    return PrefixStats(
        block_tokens=trace.block_tokens,
        distinct_blocks=int(np.count_nonzero(np.bincount(trace.block_ids))),
        referenced_blocks=len(trace.block_ids),
        token_hit_rate=_share(int(tokens.sum()), int(trace.prompt_tokens.sum())),
        block_hit_rate=_share(int(hits.sum()), int(counts.sum())),
        requests_with_hit=int((hits > 0).sum()),
        requests_fully_hit=int(((hits == counts) & (counts > 0)).sum()),
    )


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
