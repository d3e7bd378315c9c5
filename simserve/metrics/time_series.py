"""A run over time, in equal bins: everything that a report draws on its time axis.

Made from the stored tables alone, so that a run can be drawn again, and other seeds beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simserve import arrow
from simserve.metrics.columns import held, ramps, totals
from simserve.units import NS_PER_S

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]

BINS = 300

WORK = 0.05
"""Share of the mean work of a pool below which a bin says nothing about its imbalance."""


class Place(NamedTuple):
    """A replica as it appears in the tables."""

    name: str
    pool: str
    kv_blocks: int


def places(replicas: Sequence[Any]) -> list[Place]:
    """Return the replicas of a result, or those of a stored summary."""
    rows = [row if isinstance(row, dict) else vars(row) for row in replicas]
    return [Place(row["name"], row["pool"], row["kv_blocks"]) for row in rows]


def edges_of(start_ns: int, end_ns: int, bins: int = BINS) -> Float64:
    """Return the ends of equal bins, float64[bins + 1]."""
    return np.linspace(start_ns, max(end_ns, start_ns + 1), bins + 1)


def course(
    requests: pa.Table, timeline: pa.Table, replicas: Sequence[Place], edges: Float64, end_ns: int
) -> dict[str, Float64]:
    """Return the series by name, float64[bins] each; NaN where a bin says nothing.

    `end_ns` is where requests that never ended stop counting. Names with a dot end in that of a pool.
    """
    return {
        **_of_requests(requests, edges, end_ns),
        **_context(requests, edges, end_ns),
        **_transfers(requests, edges, end_ns),
        **_of_replicas(timeline, replicas, edges),
    }


def _of_requests(requests: pa.Table, edges: Float64, end_ns: int) -> dict[str, Float64]:
    width_s = (edges[1] - edges[0]) / NS_PER_S
    arrival, scheduled = _stamps(requests, "arrival_ns"), _stamps(requests, "first_scheduled_ns")
    last, done = _stamps(requests, "last_token_ns"), has_status(requests, "completed")
    queued = (arrival >= 0) & ~has_status(requests, "refused")
    gone = _gone(requests, end_ns)
    started = np.where(scheduled >= 0, scheduled, gone)
    finished = np.where(done, last, gone)
    seen = scheduled >= 0
    prompts = np.histogram(scheduled[seen], edges, weights=_stamps(requests, "prompt_tokens")[seen])[0]
    found = np.maximum(_stamps(requests, "cached_tokens"), 0)
    cached = np.histogram(scheduled[seen], edges, weights=found[seen])[0]
    return {
        "arrivals_per_s": np.histogram(arrival[arrival >= 0], edges)[0] / width_s,
        "completions_per_s": np.histogram(last[done], edges)[0] / width_s,
        "running": _present(scheduled[seen], finished[seen], edges),
        "waiting": _present(arrival[queued], started[queued], edges),
        "hit_rate": _ratio(cached, prompts),
    }


def _context(requests: pa.Table, edges: Float64, end_ns: int) -> dict[str, Float64]:
    """Return the tokens whose KV running requests need, by where it came from.

    A prompt counts whole from first scheduled on; an answer grows evenly from its first token to its last.
    """
    scheduled, first = _stamps(requests, "first_scheduled_ns"), _stamps(requests, "first_token_ns")
    seen = scheduled >= 0
    gone = _gone(requests, end_ns)
    end = np.where(has_status(requests, "completed"), _stamps(requests, "last_token_ns"), gone)[seen]
    cached = np.maximum(_stamps(requests, "cached_tokens"), 0)[seen].astype(np.float64)
    prompt = _stamps(requests, "prompt_tokens")[seen] - cached
    shown = np.where(first >= 0, first, 0)[seen]
    spoke = (first[seen] >= 0) & (end > shown)
    output = np.maximum(_stamps(requests, "output_tokens"), 0)[seen].astype(np.float64)
    span = np.diff(edges)
    held_for = np.maximum(end - scheduled[seen], 0)
    return {
        "context.cached": totals(scheduled[seen], end, cached * held_for, edges) / span,
        "context.prompt": totals(scheduled[seen], end, prompt * held_for, edges) / span,
        "context.answer": ramps(shown[spoke], end[spoke], output[spoke], edges) / span,
    }


def _transfers(requests: pa.Table, edges: Float64, end_ns: int) -> dict[str, Float64]:
    """Return the prompts of a split that are computed and not read yet: waiting for room, and moving."""
    if "transfer_end_ns" not in requests.column_names:
        return {}
    computed, room = _stamps(requests, "prefill_end_ns"), _stamps(requests, "room_ns")
    there = _stamps(requests, "transfer_end_ns")
    waits = computed >= 0
    gone = _gone(requests, end_ns)
    begun = np.maximum(np.where(room >= 0, room, gone), computed)
    arrived = np.where(there >= 0, there, gone)
    moving = waits & (room >= 0)
    return {
        "transfer.waiting": _present(computed[waits], begun[waits], edges),
        "transfer.moving": _present(begun[moving], arrived[moving], edges),
    }


def _gone(requests: pa.Table, end_ns: int) -> Int64:
    """Return when requests that are never answered leave: as the engine drops them, or not before the end."""
    if "dropped_ns" not in requests.column_names:
        return np.full(requests.num_rows, end_ns, np.int64)
    dropped = _stamps(requests, "dropped_ns")
    return np.where(dropped >= 0, dropped, end_ns)


def _of_replicas(timeline: pa.Table, replicas: Sequence[Place], edges: Float64) -> dict[str, Float64]:
    """Return use of KV and imbalance by pool, and tokens per step of all replicas together."""
    span = np.diff(edges)
    use: dict[str, list[Float64]] = {place.pool: [] for place in replicas}
    work: dict[str, list[Float64]] = {place.pool: [] for place in replicas}
    prefill, decode, steps = np.zeros(len(span)), np.zeros(len(span)), np.zeros(len(span))
    known = {place.name: place for place in replicas}
    for name, rows in _rows_by_replica(timeline):
        place = known[name]
        start, end = _stamps(rows, "start_ns"), _stamps(rows, "end_ns")
        amounts = [
            totals(start, end, arrow.floats(rows[column]), edges)
            for column in ("prefill_tokens", "decode_tokens", "steps")
        ]
        prefill, decode, steps = prefill + amounts[0], decode + amounts[1], steps + amounts[2]
        work[place.pool].append(amounts[0] + amounts[1])
        used = held(start, end, arrow.floats(rows["kv_used_blocks"]), edges)
        use[place.pool].append(used / span / max(place.kv_blocks, 1))
    series = {"prefill_per_step": _per_step(prefill, steps), "decode_per_step": _per_step(decode, steps)}
    sizes = {pool: sum(place.pool == pool for place in replicas) for pool in use}
    for pool, size in sizes.items():
        idle = [np.zeros(len(span))] * (size - len(use[pool]))  # a replica without a step has no rows
        shares = np.array([*use[pool], *idle])
        series[f"kv_mean.{pool}"] = shares.mean(axis=0)
        if size > 1:
            series[f"kv_fullest.{pool}"] = shares.max(axis=0)
            series[f"imbalance.{pool}"] = _imbalance(np.array([*work[pool], *idle]))
    return series


def _rows_by_replica(timeline: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Return the rows of each replica, which stand together."""
    if not timeline.num_rows:
        return
    names = timeline["replica"].combine_chunks()
    index = arrow.numbers(names.indices, -1)
    for first, end in pairwise([0, *(np.flatnonzero(np.diff(index)) + 1).tolist(), len(index)]):
        yield names.dictionary[int(index[first])].as_py(), timeline.slice(first, end - first)


def _imbalance(work: Float64) -> Float64:
    """Return busiest over mean replica by bin (`work`: float64[replicas, bins]); NaN where little is done."""
    mean = work.mean(axis=0)
    enough = mean > WORK * mean.mean()
    return np.divide(work.max(axis=0), mean, out=np.full(len(mean), np.nan), where=enough)


def _present(start: Int64, end: Int64, edges: Float64) -> Float64:
    """Return the mean number of requests between their start and end, per bin."""
    length = np.maximum(end - start, 0).astype(np.float64)
    some = length > 0
    return totals(start[some], end[some], length[some], edges) / np.diff(edges)


def _ratio(part: Float64, whole: Float64) -> Float64:
    return np.divide(part, whole, out=np.full(len(whole), np.nan), where=whole > 0)


def _per_step(tokens: Float64, steps: Float64) -> Float64:
    """Return tokens / steps; 0 in idle bins, whose sums are only nearly zero."""
    return np.divide(tokens, steps, out=np.zeros_like(steps), where=steps > 1e-3)


def _stamps(table: pa.Table, name: str) -> Int64:
    return arrow.numbers(table[name], -1)


def has_status(requests: pa.Table, status: str) -> NDArray[np.bool_]:
    """Return which requests ended so."""
    return arrow.equals(requests["status"], status)
