"""AIPerf's `profile_export.jsonl`: a line per request with metadata, metrics and error.

Its inter-token latency is our TPOT, its inter-chunk latency our ITL. Requests of a warm-up, and those
cancelled on purpose, are left out. Metadata are nanoseconds of the wall clock; a metric names its unit.
"""

from __future__ import annotations

import numpy as np

from simserve.validate.importers.base import IMPORTERS
from simserve.validate.importers.columns import NAN, Row, columns
from simserve.validate.importers.json_file import JsonFile, Record
from simserve.validate.importers.load_test import LoadTest
from simserve.validate.importers.sanity import FACTOR, checked, one_clock

UNITS_NS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9, "sec": 1e9, "seconds": 1e9}
NOTES = ("inter-token latency is TPOT here, inter-chunk latency is ITL",)


@IMPORTERS.register("aiperf")
class Aiperf:
    """JSON lines."""

    def sniff(self, file: JsonFile) -> bool:
        """Recognise metadata with a send time."""
        first = file.first
        return isinstance(first.get("metadata"), dict) and "request_start_ns" in first.part("metadata")

    def read(self, file: JsonFile) -> list[LoadTest]:
        """Return the one load test of the file."""
        rows: list[Row] = []
        failed = left_out = 0
        for record in file.records:
            metadata = record.part("metadata")
            phase = metadata.get("benchmark_phase") or "profiling"
            if phase != "profiling" or metadata.get("was_cancelled"):
                left_out += 1
            elif record.get("error"):
                failed += 1
            else:
                rows.append(_row(metadata, record.part("metrics")))
        one_clock(file.name, np.array([row.start_ns for row in rows], np.float64) / 1e9)
        streamed = any(row.gaps_ns for row in rows)
        test = LoadTest(
            file.name,
            "aiperf",
            columns(rows, gaps_known=streamed),
            sent=len(rows) + failed,
            failed=failed,
            left_out=left_out,
            notes=NOTES,
        )
        return [checked(test)]


def _row(metadata: Record, metrics: Record) -> Row:
    start_ns, end_ns = (metadata.count(key) for key in ("request_start_ns", "request_end_ns"))
    e2e_ns = end_ns - start_ns
    if "request_latency" in metrics:
        latency_ns = in_ns(metrics.part("request_latency"))
        if e2e_ns < 0 or not 1 / FACTOR < (latency_ns + 1e6) / (e2e_ns + 1e6) < FACTOR:
            metadata.fail(
                f"request_start_ns to request_end_ns is {e2e_ns / 1e6:g} ms, request_latency "
                f"{latency_ns / 1e6:g} ms: are clocks or units mixed?"
            )
        e2e_ns = latency_ns
    ttft = metrics.part("time_to_first_token")
    turn = metadata.get("turn_index") or 0
    conversation = metadata.get("conversation_id")
    return Row(
        start_ns,
        _tokens(metrics, "input_sequence_length"),
        _tokens(metrics, "output_sequence_length"),
        in_ns(ttft) if ttft.data else NAN,
        e2e_ns,
        _gaps(metrics.part("inter_chunk_latency")),
        metadata.get("x_correlation_id") or conversation,
        conversation if turn == 0 else f"{conversation}, turn {turn}",
    )


def _tokens(metrics: Record, key: str) -> int:
    if key not in metrics:
        metrics.fail(f"no {key}: a request without its lengths cannot be compared or replayed")
    return metrics.part(key).count("value")


def _gaps(metric: Record) -> list[float]:
    scale = unit_ns(metric) if metric.data else 1.0
    return [scale * gap for gap in (metric.list("value") if metric.data else [])]


def in_ns(metric: Record) -> float:
    """Return a metric's value in ns; raises `TraceError` for an unknown unit."""
    return metric.number("value") * unit_ns(metric)


def unit_ns(metric: Record) -> float:
    """Return the metric's unit in ns."""
    unit = metric.get("unit")
    if unit not in UNITS_NS:
        metric.fail(f"unit {unit!r}, known: {', '.join(UNITS_NS)}")
    return UNITS_NS[unit]
