"""A run as a trace for Perfetto (ui.perfetto.dev): JSON in the Trace Event Format of Chrome, gzipped.

One process per replica, with a track of its engine steps, counters of requests and KV blocks, and a track for
each request there. Arrows lead each request from its arrival to its first step, to its first token, and to
its last. The same folder gives the same bytes.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from simserve.metrics.store import StoredRun
from simserve.report.export.llm_d import write_llm_d
from simserve.report.stored import stamps

# Requests in a trace for Perfetto: the phases of each as nested spans, and arrows between them.

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


ARRIVALS_PID = 1
FIRST_PID = 2
STEPS_TID = 1


def write_timeline(run: StoredRun, target: Path) -> None:
    """Write the stored steps and requests of a run; it must have been recorded with its steps."""
    with open(target, "wb") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as file:
        file.write(b'{"displayTimeUnit":"ms","otherData":')
        file.write(_text(_about(run)) + b',"traceEvents":[\n')
        for number, event in enumerate(_events(run)):
            file.write((b",\n" if number else b"") + _text(event))
        file.write(b"\n]}\n")


def _events(run: StoredRun) -> Iterator[Event]:
    steps = run.steps
    names = [pool["name"] for pool in run.summary["replicas"]]
    pids = {name: FIRST_PID + index for index, name in enumerate(names)}
    yield from _named(ARRIVALS_PID, "arrivals", "requests")
    for name, pid in pids.items():
        yield from _named(pid, name, "steps")
    if not len(steps):
        return
    yield from _step_events(steps, pids)
    start_ns, end_ns = int(min(steps["start_ns"].to_numpy())), int(max(steps["end_ns"].to_numpy()))
    yield from request_events(shown_requests(run.requests, start_ns, end_ns), pids, ARRIVALS_PID, STEPS_TID)


def _named(pid: int, process: str, thread: str) -> Iterator[Event]:
    yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": process}}
    yield {"ph": "M", "pid": pid, "name": "process_sort_index", "args": {"sort_index": pid}}
    yield {"ph": "M", "pid": pid, "tid": STEPS_TID, "name": "thread_name", "args": {"name": thread}}


def _step_events(steps: pa.Table, pids: dict[str, int]) -> Iterator[Event]:
    """Yield a slice per step and, where they change, the counters at its start."""
    before: dict[tuple[int, str], Event] = {}
    for row in _rows(steps):
        pid = pids[row["replica"]]
        yield {
            "ph": "X",
            "pid": pid,
            "tid": STEPS_TID,
            "ts": us(row["start_ns"]),
            "dur": us(row["end_ns"] - row["start_ns"]),
            "name": step_name(row),
            "cat": "step",
            "args": {name: row[name] for name in _SHOWN if row[name]},
        }
        counters = {
            "requests": {"running": row["running"], "waiting": row["waiting"]},
            "KV blocks": {"used": row["kv_used_blocks"]},
            "tokens per step": {"prompt": row["prompt_tokens"], "decode": row["sequences"]},
        }
        for name, values in counters.items():
            if before.get((pid, name)) != values:
                before[pid, name] = values
                yield {"ph": "C", "pid": pid, "ts": us(row["start_ns"]), "name": name, "args": values}


_SHOWN = ("steps", "sequences", "context", "chunks", "prompt_tokens", "admitted", "preempted")


def step_name(row: dict[str, Any]) -> str:
    """Return what a step did, and so what it took its time for."""
    words = "mixed" if row["chunks"] and row["sequences"] else "prefill" if row["chunks"] else "decode"
    if row["preempted"]:
        words += " after preemption"
    return words if row["steps"] == 1 else f"{row['steps']} x {words}"


def _rows(steps: pa.Table) -> Iterator[dict[str, Any]]:
    for batch in steps.to_batches(max_chunksize=8192):
        yield from batch.to_pylist()


def us(time_ns: int) -> float:
    """Return microseconds, the format's unit; exact to the nanosecond for runs of up to a hundred days."""
    return time_ns / 1000


def _about(run: StoredRun) -> Event:
    """Return what the trace is of, and what it leaves out."""
    about: Event = {
        "run": run.manifest["scenario_name"],
        "simserve_version": run.manifest["simserve_version"],
    }
    cut_ns = (run.steps.schema.metadata or {}).get(b"cut_ns")
    if cut_ns is not None:
        about["note"] = f"steps were recorded until {int(cut_ns) / 1e9:.3f} s: there were too many"
    finished = int(np.count_nonzero(run.requests["arrival_ns"].is_valid().to_numpy(zero_copy_only=False)))
    if finished > MOST_REQUESTS:
        about["requests"] = f"at most {MOST_REQUESTS} requests are drawn, evenly chosen"
    return about


def _text(event: Event) -> bytes:
    return json.dumps(event, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


# Formats of other tools that a stored run can be written in.

EXPORTS: dict[str, Callable[[Path, Path], Path]] = {"llm-d": write_llm_d}
"""By name: a function of the result folder and the file to write, which returns the file."""
