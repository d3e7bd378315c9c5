"""A run as a trace for Perfetto (ui.perfetto.dev): JSON in the Trace Event Format of Chrome, gzipped.

One process per replica, with a track of its engine steps, counters of requests and KV blocks, and a track for
each request there. Arrows lead each request from its arrival to its first step, to its first token, and to
its last. The same folder gives the same bytes.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from simserve.metrics.store import StoredRun
from simserve.report.request_tracks import MOST_REQUESTS, request_events, shown_requests

Event = dict[str, Any]

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
