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
from simserve.workload.select import Int64, spans, take_rows
from simserve.workload.sessions import first_turns, start_rows


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
