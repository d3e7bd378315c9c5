"""Sessions: turns that follow one another's answers (closed loop), and the history that they carry.

Only the first turn has an arrival of its own. Later turns are placed at a *nominal* arrival, the first
turn's plus the think times since, i.e. as if answers took no time: it orders the rows and nothing else.
Rows of a session are its turns in order; they need not be neighbours.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simserve.workload.blocks import Blocks
from simserve.workload.select import dense, spans, within

Int64 = NDArray[np.int64]


def first_turns(session: Int64 | None, n: int) -> NDArray[np.bool_]:
    """Return bool[n]: rows that arrive on their own (independent, or the first turn of a session)."""
    first = np.ones(n, dtype=bool)
    if session is not None:
        first[:] = False
        first[np.unique(session, return_index=True)[1]] = True
    return first


def start_rows(session: Int64) -> Int64:
    """Return int64[n]: the row of the first turn of each row's session."""
    _, first, inverse = np.unique(session, return_index=True, return_inverse=True)
    return first[inverse]


def running_sum(values: Int64, session: Int64) -> Int64:
    """Return int64[n]: sum of `values` over the turns of the session up to and including each row."""
    order = np.argsort(session, kind="stable")
    first = np.diff(session[order], prepend=session[order[0]] - 1) != 0
    total = np.cumsum(values[order])
    before = (total - values[order])[first]
    out = np.empty_like(total)
    out[order] = total - before[np.cumsum(first) - 1]
    return out


def nominal_arrivals(arrival_ns: Int64, session: Int64, think_ns: Int64) -> Int64:
    """Return int64[n]: a later turn's arrival replaced by its session's start plus the think times so far."""
    thinks = np.where(first_turns(session, len(session)), 0, think_ns)
    return arrival_ns[start_rows(session)] + running_sum(thinks, session)


def whole_prompts(session: Int64, new_tokens: Int64, output_tokens: Int64) -> Int64:
    """Return int64[n] prompts that carry their history: all earlier prompts and answers of the session."""
    return running_sum(new_tokens + output_tokens, session) - output_tokens


def whole_blocks(blocks: Blocks, session: Int64, prompt_tokens: Int64, size: int, partial: bool) -> Blocks:
    """Return the blocks of whole prompts, from those of prompts that gave only their new tokens.

    The full blocks of a first turn keep their ids, so that sessions share what they shared. What comes after
    follows an answer that is the session's own, so it is shared within the session only: block j of a session
    has one id once it is full; a partial last block (if the file has them) has one per turn.
    """
    n = len(session)
    start = start_rows(session)
    counts = -(-prompt_tokens // size) if partial else prompt_tokens // size
    first = start == np.arange(n)
    counts = np.where(first, blocks.counts, counts)
    row, place = np.repeat(np.arange(n), counts), within(counts)
    # A later turn sees the first turn's full blocks unchanged; a partial one has been filled up since.
    from_first = np.where(first, counts, np.minimum(prompt_tokens // size, blocks.counts)[start])
    kept = place < from_first[row]
    longest = np.zeros(session.max() + 1, dtype=np.int64)
    np.maximum.at(longest, session, counts)
    private = len(blocks.ids)
    ids = private + spans(longest)[session[row]] + place
    full = prompt_tokens[row] >= size * (place + 1)
    ids[~full] = private + longest.sum() + row[~full]
    ids[kept] = blocks.ids[blocks.offsets[start[row[kept]]] + place[kept]]
    return Blocks(dense(ids), spans(counts))
