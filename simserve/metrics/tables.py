"""The Parquet tables of a result folder: requests, timeline and gaps (columns in docs/metrics.md)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from simserve import arrow
from simserve.core import ReplicaResult, Result, Status, TokenGaps
from simserve.core.totals import Steps
from simserve.metrics.columns import Slo, derive, good
from simserve.metrics.stages import stage_columns

_STAMPS = ("arrival_ns", "first_scheduled_ns", "first_token_ns", "last_token_ns")
_COUNTS = ("prompt_tokens", "output_tokens", "cached_tokens", "preemptions", "requeued_ns")
_SPLIT_STAMPS = (
    "prefill_scheduled_ns",
    "prefill_end_ns",
    "room_ns",
    "transfer_end_ns",
    "decode_scheduled_ns",
    "transfer_bytes",
    "decode_cached_tokens",
)
_LATENCIES = ("ttft_ms", "tpot_ms", "e2e_ms", "queueing_ms")
_LINES = ("running", "waiting", "kv_used_blocks", "prefill_tokens", "decode_tokens", "steps")
_STEP_COLUMNS = (
    "start_ns",
    "end_ns",
    "steps",
    "sequences",
    "context",
    "chunks",
    "prompt_tokens",
    "admitted",
    "preempted",
    "running",
    "waiting",
    "kv_used_blocks",
)
_STATUS = [status.name.lower() for status in Status]


def request_table(result: Result, slo: Slo | None) -> pa.Table:
    """Return one row per request in the trace's order; what never happened is null."""
    columns = derive(result)
    low, high = result.steady_window
    table: dict[str, pa.Array] = {"request": arrow.column(np.arange(len(result), dtype=np.int64))}
    for name in _STAMPS:
        table[name] = _nullable(getattr(result, name))
    for name in _COUNTS:
        table[name] = _nullable(getattr(result, name))
    for name in _LATENCIES:
        values = getattr(columns, name)
        table[name] = arrow.column(values, np.isnan(values))
    if result.verifications is not None:
        table["verifications"] = _nullable(result.verifications)
    if result.dropped_ns is not None:
        table["dropped_ns"] = _nullable(result.dropped_ns)
    table["status"] = arrow.indexed(result.status, _STATUS)
    table["reason"] = arrow.indexed(result.reason, list(result.reasons))
    table["replica"] = arrow.indexed(result.replica, [replica.name for replica in result.replicas])
    table["steady"] = arrow.column(
        (result.arrival_order >= low) & (result.arrival_order < high) & columns.arrived
    )
    if slo is not None and slo.limits():
        table["good"] = arrow.column(good(slo, columns))
    else:
        table["good"] = pa.nulls(len(result), pa.bool_())
    if result.split is not None:
        table |= _split_columns(result)
    return pa.table(table)


def _split_columns(result: Result) -> dict[str, pa.Array]:
    """Return the stamps of a split and the stages between them."""
    assert result.split is not None
    found = result.split.columns
    names = [replica.name for replica in result.replicas]
    table = {"prefill_replica": arrow.indexed(found.prefill_replica, names)}
    for name in _SPLIT_STAMPS:
        table[name] = _nullable(getattr(found, name))
    for name, values in stage_columns(result).items():
        table[f"{name}_ns"] = _nullable(values)
    return table


def timeline_table(replicas: tuple[ReplicaResult, ...]) -> pa.Table:
    """Return the timelines of all replicas, one after another."""
    names = [replica.name for replica in replicas]
    lengths = [len(replica.timeline.start_ns) for replica in replicas]
    table = {"replica": arrow.indexed(np.repeat(np.arange(len(names)), lengths), names)}
    for name in ("start_ns", "end_ns"):
        table[name] = arrow.column(_joined([getattr(r.timeline, name) for r in replicas], np.int64))
    for name in _LINES:
        table[name] = arrow.column(_joined([getattr(r.timeline, name) for r in replicas], np.float64))
    return pa.table(table)


def step_table(steps: Steps) -> pa.Table:
    """Return one row per recorded step; the metadata say when recording ended, if it ended early."""
    table = {"replica": arrow.indexed(steps.replica, list(steps.replicas))}
    table |= {name: arrow.column(getattr(steps, name)) for name in _STEP_COLUMNS}
    metadata = None if steps.cut_ns is None else {"cut_ns": str(steps.cut_ns)}
    return pa.table(table).replace_schema_metadata(metadata)


def gap_table(whole: TokenGaps, steady: TokenGaps) -> pa.Table:
    """Return the two histograms of inter-token latencies, one after another."""
    windows = np.repeat([0, 1], [len(whole.gap_ns), len(steady.gap_ns)])
    return pa.table(
        {
            "window": arrow.indexed(windows, ["whole", "steady"]),
            "gap_ns": arrow.column(_joined([whole.gap_ns, steady.gap_ns], np.float64)),
            "count": arrow.column(_joined([whole.count, steady.count], np.int64)),
        }
    )


def _nullable(values: NDArray[np.int64]) -> pa.Array:
    return arrow.column(values.astype(np.int64, copy=False), values < 0)


def _joined(parts: list[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate([*parts, np.empty(0, dtype)]).astype(dtype, copy=False)
