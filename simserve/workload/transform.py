"""Change a trace: rate, length, window, copies. Pure functions; each notes itself in the trace's origin.

Sessions stay whole or lose their last turns, never one in the middle. A transformation of time moves whole
sessions: what lies between an answer and the next turn is a user's think time and does not shrink with load.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from simserve.core import Trace
from simserve.errors import ScenarioError
from simserve.units import NS_PER_S
from simserve.workload.blocks import Blocks, Int64, dense, spans, take_rows, within

# Sessions: turns that follow one another's answers (closed loop), and the history that they carry.
#
# Only the first turn has an arrival of its own. Later turns are placed at a *nominal* arrival, the first
# turn's plus the think times since, i.e. as if answers took no time: it orders the rows and nothing else.
# Rows of a session are its turns in order; they need not be neighbours.


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


def scale_rate_by_compression(trace: Trace, factor: float) -> Trace:
    """Return the trace with its arrivals `factor` times as fast: bursts become steeper and shorter.

    Rounded to the nearest nanosecond. Think times are left alone.
    """
    _require_positive("rate factor", factor)
    if factor == 1:
        return trace
    start_ns = _starts_ns(trace)
    moved = trace.arrival_ns - start_ns + np.rint(start_ns / factor).astype(np.int64)
    kept = "" if trace.session is None else ", think times kept"
    return _reordered(replace(trace, arrival_ns=moved), f"rate x {factor:g} by compressing time{kept}")


def scale_rate_by_thinning(trace: Trace, factor: float, seed: int) -> Trace:
    """Return a random share of the trace (sessions whole): the rate falls, silences stay as they are.

    Each request or session is kept with probability `factor`, drawn in trace order from `seed`.
    """
    _require_positive("rate factor", factor)
    if factor > 1:
        raise ScenarioError(
            f"rate factor {factor:g} cannot be reached by thinning, which only removes: use compression"
        )
    first = first_turns(trace.session, len(trace))
    kept = np.zeros(len(trace), dtype=bool)
    kept[first] = np.random.default_rng([seed, 1]).random(int(first.sum())) < factor
    if trace.session is not None:
        kept = kept[start_rows(trace.session)]
    return _kept(trace, kept, f"rate x {factor:g} by thinning (seed {seed})")


def take(trace: Trace, limit: int) -> Trace:
    """Return the first `limit` requests; a session that is cut loses its last turns."""
    if limit < 1:
        raise ScenarioError(f"limit {limit} is not allowed: at least one request must remain")
    if limit >= len(trace):
        return trace
    return _kept(trace, np.arange(len(trace)) < limit, f"first {limit:,} requests")


def window(trace: Trace, start_s: float, end_s: float) -> Trace:
    """Return what arrives in [start_s, end_s) after the first arrival; sessions that start there, whole."""
    if not (math.isfinite(start_s) and math.isfinite(end_s) and 0 <= start_s < end_s):
        raise ScenarioError(f"window {start_s:g} to {end_s:g} s is not allowed: 0 <= start < end is needed")
    start_ns = _starts_ns(trace)
    kept = (start_ns >= round(start_s * NS_PER_S)) & (start_ns < round(end_s * NS_PER_S))
    return _kept(trace, kept, f"window {start_s:g} to {end_s:g} s")


def tile(trace: Trace, copies: int, same_content: bool = False) -> Trace:
    """Return the trace `copies` times end to end, one mean gap between a copy's last arrival and the next.

    Each copy has sessions of its own, and prompts of its own (no block of one copy is cached by another)
    unless `same_content`.
    """
    if copies < 1:
        raise ScenarioError(f"{copies} copies are not allowed: at least one is needed")
    if copies == 1:
        return trace
    n = len(trace)
    span_ns = int(trace.arrival_ns[-1])
    period_ns = span_ns + max(1, round(span_ns / max(1, n - 1)))
    copy = np.repeat(np.arange(copies), n)

    def shifted(column: Int64 | None, step: int) -> Int64 | None:
        return (
            None
            if column is None
            else np.tile(column, copies) + np.repeat(np.arange(copies), len(column)) * step
        )

    blocks, offsets = trace.block_ids, trace.block_offsets
    sessions = 0 if trace.session is None else int(trace.session.max()) + 1
    distinct = 0 if blocks is None or same_content or not len(blocks) else int(blocks.max()) + 1
    repeated = replace(
        take_rows(replace(trace, block_ids=None, block_offsets=None), np.tile(np.arange(n), copies)),
        arrival_ns=np.tile(trace.arrival_ns, copies) + copy * period_ns,
        session=shifted(trace.session, sessions),
        block_ids=shifted(blocks, distinct),
        block_offsets=None if offsets is None else spans(np.tile(np.diff(offsets), copies)),
    )
    content = "the same content" if same_content else "content of its own"
    return _noted(
        repeated,
        f"{copies:,} copies end to end, each with {content}"
        if blocks is not None
        else f"{copies:,} copies end to end",
    )


def spread_quantised(trace: Trace, seed: int) -> Trace:
    """Return the trace with its stamps spread uniformly inside their quantum, order kept.

    The quantum is the smallest gap between two different stamps. Meant for logs that were written in ticks
    (Mooncake conversation: 3 s), where literal stamps arrive in artificial crowds.
    """
    starts = first_turns(trace.session, len(trace))
    stamps = trace.arrival_ns[starts]
    gaps = np.diff(np.unique(stamps))
    equal = len(stamps) - len(gaps) - 1
    if not equal or not len(gaps):
        return _noted(trace, "stamps were not spread: no two are equal")
    quantum_ns = int(gaps.min())
    drawn = np.random.default_rng([seed, 2]).integers(0, quantum_ns, len(stamps))
    spread = np.zeros(len(trace), dtype=np.int64)
    spread[starts] = drawn[np.lexsort((drawn, stamps))]
    rows = start_rows(trace.session) if trace.session is not None else slice(None)
    note = f"stamps spread inside their quantum of {quantum_ns / NS_PER_S:g} s (seed {seed}), {equal:,} equal"
    return _reordered(replace(trace, arrival_ns=trace.arrival_ns + spread[rows]), note)


def _starts_ns(trace: Trace) -> Int64:
    """Arrival of each row's session (of the row itself, without sessions)."""
    return trace.arrival_ns if trace.session is None else trace.arrival_ns[start_rows(trace.session)]


def _kept(trace: Trace, kept: NDArray[np.bool_], what: str) -> Trace:
    rows = np.flatnonzero(kept)
    if not len(rows):
        raise ScenarioError(f"{what}: none of the {len(trace):,} requests of {trace.origin.name} remain")
    chosen = take_rows(trace, rows)
    chosen = replace(chosen, arrival_ns=chosen.arrival_ns - chosen.arrival_ns[0])
    return _noted(chosen, f"{what}: {len(rows):,} of {len(trace):,} requests kept")


def _reordered(trace: Trace, note: str) -> Trace:
    ordered = take_rows(trace, np.argsort(trace.arrival_ns, kind="stable"))
    return _noted(replace(ordered, arrival_ns=ordered.arrival_ns - ordered.arrival_ns[0]), note)


def _noted(trace: Trace, note: str) -> Trace:
    return replace(trace, origin=replace(trace.origin, changes=(*trace.origin.changes, note)))


def _require_positive(what: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ScenarioError(f"{what} {value!r} is not allowed: a finite number above 0 is needed")
