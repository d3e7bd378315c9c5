"""What the charts draw: the stored columns, binned or sampled. Nothing that is reported as a number."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from simserve.metrics.intervals import held, totals
from simserve.units import NS_PER_MS, NS_PER_S

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]

BINS = 300
_BODY = np.linspace(0, 0.98, 197)
_TAIL = 1 - np.geomspace(0.02, 1e-5, 60)
QUANTILES = np.unique(np.concatenate([_BODY, _TAIL, [1.0]]))


def ecdf(values: Float64) -> tuple[Float64, Float64]:
    """Return (value, share of values not larger), at most some 250 points, denser in the upper tail."""
    present = np.sort(values[~np.isnan(values)])
    if present.size <= QUANTILES.size:
        return present, np.arange(1, present.size + 1) / max(present.size, 1)
    rank = np.ceil(QUANTILES * (present.size - 1)).astype(np.int64)
    return present[rank], (rank + 1) / present.size


def gap_ecdf_ms(gaps: pa.Table, window: str) -> tuple[Float64, Float64]:
    """Return the same for the pooled inter-token gaps of a window (`whole` or `steady`)."""
    mine = equals(gaps["window"], window)
    value, count = gaps["gap_ns"].to_numpy()[mine] / NS_PER_MS, gaps["count"].to_numpy()[mine]
    if not count.sum():
        return np.empty(0), np.empty(0)
    share = np.cumsum(count) / count.sum()
    keep = np.unique(np.minimum(np.searchsorted(share, QUANTILES), len(share) - 1))
    return value[keep], share[keep]


def equals(words: pa.ChunkedArray, word: str) -> NDArray[np.bool_]:
    """Return where a column of words holds `word` (null: nowhere)."""
    return pc.call_function("equal", [words, pa.scalar(word)]).fill_null(False).to_numpy()


@dataclass(frozen=True)
class Course:
    """The run over time, in equal bins; all series are float64[bins]."""

    time_s: Float64
    """Middle of each bin."""
    arrivals_per_s: Float64
    completions_per_s: Float64
    waiting: Float64
    """Arrived and never scheduled yet."""
    running: Float64
    """Scheduled and not finished."""
    kv_use: dict[str, Float64]
    """Share of usable blocks held, by replica."""
    prefill_per_step: Float64
    decode_per_step: Float64


def course(
    requests: pa.Table, timeline: pa.Table, kv_blocks: dict[str, int], start_ns: int, end_ns: int
) -> Course:
    """Return the run over time; `kv_blocks` are the usable blocks by replica."""
    edges = np.linspace(start_ns, max(end_ns, start_ns + 1), BINS + 1)
    width_s = (edges[1] - edges[0]) / NS_PER_S
    arrival, scheduled = _stamps(requests, "arrival_ns"), _stamps(requests, "first_scheduled_ns")
    last = _stamps(requests, "last_token_ns")
    refused, done = equals(requests["status"], "refused"), equals(requests["status"], "completed")
    queued = (arrival >= 0) & ~refused
    started = np.where(scheduled >= 0, scheduled, end_ns)
    finished = np.where(done, last, end_ns)
    steps = np.maximum(_amount(timeline, "steps", edges), 1e-9)
    return Course(
        time_s=(edges[:-1] + edges[1:]) / 2 / NS_PER_S,
        arrivals_per_s=np.histogram(arrival[arrival >= 0], edges)[0] / width_s,
        completions_per_s=np.histogram(last[done], edges)[0] / width_s,
        waiting=_present(arrival[queued], started[queued], edges),
        running=_present(scheduled[scheduled >= 0], finished[scheduled >= 0], edges),
        kv_use=_kv_use(timeline, kv_blocks, edges),
        prefill_per_step=_amount(timeline, "prefill_tokens", edges) / steps,
        decode_per_step=_amount(timeline, "decode_tokens", edges) / steps,
    )


def _stamps(table: pa.Table, name: str) -> Int64:
    return table[name].fill_null(-1).to_numpy()


def _present(start: Int64, end: Int64, edges: Float64) -> Float64:
    """Return the mean number of requests between their start and end, per bin."""
    length = np.maximum(end - start, 0).astype(np.float64)
    some = length > 0
    return totals(start[some], end[some], length[some], edges) / np.diff(edges)


def _amount(timeline: pa.Table, name: str, edges: Float64) -> Float64:
    start, end = timeline["start_ns"].to_numpy(), timeline["end_ns"].to_numpy()
    return totals(start, end, timeline[name].to_numpy(), edges)


def _kv_use(timeline: pa.Table, kv_blocks: dict[str, int], edges: Float64) -> dict[str, Float64]:
    start, end = timeline["start_ns"].to_numpy(), timeline["end_ns"].to_numpy()
    used = timeline["kv_used_blocks"].to_numpy()
    shares = {}
    for name, blocks in kv_blocks.items():
        mine = equals(timeline["replica"], name)
        shares[name] = held(start[mine], end[mine], used[mine], edges) / np.diff(edges) / max(blocks, 1)
    return shares


@dataclass(frozen=True)
class Parts:
    """Mean time of a group of requests by where it went, in ms."""

    label: str
    mean_ms: float
    queue_ms: float
    prefill_ms: float
    decode_ms: float
    requeue_ms: float


GROUPS = (
    ("all requests", 0.0, 1.0),
    ("middle fifth", 0.4, 0.6),
    ("slowest 10 %", 0.9, 1.0),
    ("slowest 1 %", 0.99, 1.0),
)


def parts(requests: pa.Table, upto: str) -> list[Parts]:
    """Return where the time of completed requests went, until `e2e_ms` or `ttft_ms`, by how slow they were.

    Waiting after preemptions is stored as one sum per request: it is taken out of decode first, then prefill.
    """
    total = requests[upto].to_numpy(zero_copy_only=False).astype(np.float64)
    order = np.argsort(total)[: np.count_nonzero(~np.isnan(total))]
    if order.size == 0:
        return []
    queue = (_stamps(requests, "first_scheduled_ns") - _stamps(requests, "arrival_ns")) / NS_PER_MS
    first = _stamps(requests, "first_token_ns")
    last = _stamps(requests, "last_token_ns")
    shown = np.where(first >= 0, first, last)
    prefill = (shown - _stamps(requests, "first_scheduled_ns")) / NS_PER_MS
    decode = (last - shown) / NS_PER_MS
    again = _stamps(requests, "requeued_ns") / NS_PER_MS
    in_decode = np.minimum(again, decode)
    in_prefill = np.minimum(again - in_decode, prefill)
    columns = {
        "queue_ms": queue,
        "prefill_ms": prefill - in_prefill,
        "decode_ms": decode - in_decode if upto == "e2e_ms" else np.zeros(len(decode)),
        "requeue_ms": in_prefill + (in_decode if upto == "e2e_ms" else 0),
    }
    rows = []
    for label, low, high in GROUPS:
        members = order[int(low * order.size) : max(int(np.ceil(high * order.size)), 1)]
        if members.size:
            means = {name: float(column[members].mean()) for name, column in columns.items()}
            rows.append(Parts(label, float(total[members].mean()), **means))
    return rows
