"""Requests in a trace for Perfetto: the phases of each as nested spans, and arrows between them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from simserve.report.stored import stamps

Event = dict[str, Any]

MOST_REQUESTS = 2000
"""Requests that are drawn: beyond, tracks are too many to find anything."""


def shown_requests(requests: pa.Table, start_ns: int, end_ns: int) -> pa.Table:
    """Return the requests that were in the system between two times, evenly thinned to MOST_REQUESTS."""
    arrival, last = stamps(requests, "arrival_ns"), stamps(requests, "last_token_ns")
    rows = np.flatnonzero((arrival >= 0) & (arrival <= end_ns) & (last >= start_ns))
    if len(rows) > MOST_REQUESTS:
        rows = rows[np.linspace(0, len(rows) - 1, MOST_REQUESTS).astype(np.int64)]
    return requests.take(rows)


def request_events(
    requests: pa.Table, pids: dict[str, int], arrivals_pid: int, steps_tid: int
) -> Iterator[Event]:
    """Yield spans and arrows of the requests; `pids` are the processes of the replicas by name."""
    for row in requests.to_pylist():
        ident = row["request"]
        yield {
            "ph": "X",
            "pid": arrivals_pid,
            "tid": steps_tid,
            "ts": row["arrival_ns"] / 1000,
            "dur": 0.001,
            "name": f"request {ident}",
            "cat": "arrival",
            "args": {"prompt_tokens": row["prompt_tokens"], "output_tokens": row["output_tokens"]},
        }
        for name, place, start_ns, end_ns in phases(row):
            span = {"pid": pids[place], "cat": "request", "id": ident, "name": name}
            yield {"ph": "b", **span, "ts": start_ns / 1000}
            yield {"ph": "e", **span, "ts": end_ns / 1000}
        yield from _arrows(row, pids, arrivals_pid, steps_tid)


def phases(row: dict[str, Any]) -> list[tuple[str, str, int, int]]:
    """Return (phase, replica, start_ns, end_ns) of a completed request, one after another."""
    first, last, place = row["first_token_ns"], row["last_token_ns"], row["replica"]
    moved = row.get("transfer_end_ns")
    if moved is not None and row.get("prefill_replica") is not None:
        source, started, computed = row["prefill_replica"], row["prefill_scheduled_ns"], row["prefill_end_ns"]
        ended = max(moved, computed)
        found = [
            ("queue", source, row["arrival_ns"], started),
            ("prefill", source, started, computed),
            ("transfer", place, computed, ended),
            ("first decode step", place, ended, first),
            ("decode", place, first, last),
        ]
    else:
        found = [
            ("queue", place, row["arrival_ns"], row["first_scheduled_ns"]),
            ("prefill", place, row["first_scheduled_ns"], first),
            ("decode", place, first, last),
        ]
    return [
        phase for phase in found if phase[2] is not None and phase[3] is not None and phase[3] >= phase[2]
    ]


def _arrows(row: dict[str, Any], pids: dict[str, int], arrivals_pid: int, steps_tid: int) -> Iterator[Event]:
    """Yield an arrow from the arrival to the first step of each phase: it binds to the step there."""
    stops = [(pids[place], start_ns) for name, place, start_ns, _ in phases(row) if name != "queue"]
    if not stops:
        return
    flow = {"tid": steps_tid, "cat": "request", "name": "request", "id": row["request"]}
    yield {"ph": "s", "pid": arrivals_pid, "ts": row["arrival_ns"] / 1000, **flow}
    for number, (pid, time_ns) in enumerate(stops, 1):
        last = number == len(stops)
        yield {
            "ph": "f" if last else "t",
            "pid": pid,
            "ts": time_ns / 1000,
            **({"bp": "e"} if last else {}),
            **flow,
        }
