"""AIPerf's `profile_export.jsonl`: a line per request with metadata, metrics and error.

Warm-up and cancelled requests are left out. Times are nanoseconds in the metadata; a metric names its unit.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from simserve.errors import TraceError
from simserve.validate.importers.outcome import Outcome

_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}


def read_aiperf(path: Path) -> Outcome:
    """Return the measured requests; raises `TraceError` naming file, line and key."""
    rows, failed, left_out = [], 0, 0
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").splitlines(), 1):
        if not line.strip():
            continue
        place = f"{path.name}:{number}"
        try:
            record = json.loads(line)
            metadata, metrics = record["metadata"], record["metrics"]
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise TraceError(f"{place}: no AIPerf record with metadata and metrics") from error
        if metadata.get("benchmark_phase", "profiling") != "profiling" or metadata.get("was_cancelled"):
            left_out += 1
        elif record.get("error"):
            failed += 1
        elif "time_to_first_token" not in metrics:
            left_out += 1
        else:
            rows.append(_row(place, metadata, metrics))
    columns = np.array(rows, np.float64).reshape(-1, 5)
    start_s = (columns[:, 0] - columns[:, 0].min(initial=np.inf)) / 1e9 if len(rows) else columns[:, 0]
    return Outcome(
        path.name,
        start_s,
        columns[:, 1].astype(np.int64),
        columns[:, 2].astype(np.int64),
        columns[:, 3],
        columns[:, 4],
        failed,
        left_out,
    )


def _row(place: str, metadata: dict[str, Any], metrics: dict[str, Any]) -> list[float]:
    start_ns, end_ns = (_stamp(place, metadata, name) for name in ("request_start_ns", "request_end_ns"))
    e2e_s = (end_ns - start_ns) / 1e9
    if "request_latency" in metrics:
        e2e_s = _seconds(place, metrics["request_latency"])
    tokens = [
        float(metrics[name]["value"]) if name in metrics else 0.0
        for name in ("input_sequence_length", "output_sequence_length")
    ]
    return [start_ns, *tokens, _seconds(place, metrics["time_to_first_token"]), e2e_s]


def _stamp(place: str, metadata: dict[str, Any], name: str) -> float:
    if not isinstance(metadata.get(name), int | float):
        raise TraceError(f"{place}: metadata has no {name}")
    return float(metadata[name])


def _seconds(place: str, metric: dict[str, Any]) -> float:
    if metric.get("unit") not in _SECONDS:
        raise TraceError(f"{place}: unit {metric.get('unit')!r}, known: {', '.join(_SECONDS)}")
    return float(metric["value"]) * _SECONDS[metric["unit"]]
