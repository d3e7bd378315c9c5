"""AIPerf's `profile_export.jsonl`: a line per request with metadata, metrics and error.

Its inter-token latency is our TPOT, its inter-chunk latency our ITL. Requests of a warm-up, and those
cancelled on purpose, are left out. Metadata are nanoseconds of the wall clock; a metric names its unit.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import numpy as np

from simserve.validation.loadtests.base import IMPORTERS, NAN, LoadTest, Row, columns, statistics_of
from simserve.validation.loadtests.json_file import JsonFile, Record
from simserve.validation.loadtests.read import FACTOR, checked, one_clock

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
            latency_notes=NOTES,
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


# AIPerf's and GenAI-Perf's statistics: profile_export_aiperf.json, profile_export_genai_perf.json.
#
# One metric per key: {unit, avg, p50, p90 ...}. Their inter-token latency is our TPOT, AIPerf's inter-chunk
# latency our ITL. Percentiles are the tool's own.

_LATENCIES = {
    "time_to_first_token": "ttft_ms",
    "inter_token_latency": "tpot_ms",
    "inter_chunk_latency": "itl_ms",
    "request_latency": "e2e_ms",
}
_RATES = {
    "request_throughput": "requests_per_s",
    "output_token_throughput": "output_tokens_per_s",
    "total_token_throughput": "total_tokens_per_s",
}


@IMPORTERS.register("aiperf-summary")
class AiperfSummary:
    """One JSON."""

    def sniff(self, file: JsonFile) -> bool:
        """Recognise metrics with a unit and an average."""
        latency = file.first.get("request_latency")
        return isinstance(latency, dict) and {"unit", "avg"} <= latency.keys()

    def read(self, file: JsonFile) -> list[LoadTest]:
        """Return the one load test of the file."""
        record = file.first
        stated: dict[str, float] = {}
        for theirs, ours in _LATENCIES.items():
            if theirs in record:
                metric = record.part(theirs)
                stated |= statistics_of(metric, ours, unit_ns(metric) / 1e6)
        for theirs, ours in _RATES.items():
            if theirs in record:
                stated[ours] = record.part(theirs).number("avg")
        done = _value(record, "request_count")
        failed = int(_value(record, "error_request_count") or _errors(record))
        duration = record.part("benchmark_duration")
        test = LoadTest(
            file.name,
            "aiperf-summary",
            None,
            stated,
            sent=None if done is None else int(done) + failed,
            failed=failed,
            duration_s=duration.number("avg") * unit_ns(duration) / 1e9 if duration.data else None,
            notes=("statistics only: the tool's own percentiles, not recomputed",),
            latency_notes=NOTES,
        )
        return [checked(test)]


def _value(record: Record, key: str) -> float | None:
    return record.part(key).number("avg") if key in record else None


def _errors(record: Record) -> int:
    return sum(int(one.get("count", 0)) for one in record.get("error_summary") or [])


# GenAI-Perf's and perf_analyzer's profile_export.json: experiments, their requests, a stamp per response.
#
# Stamps are nanoseconds of one clock. The file counts no tokens: a response with content is taken for one,
# and
# the prompt's length is not known (0). Responses without content are a role, or an end mark.

_NOTES = (
    "each response with content counts as one token; the file does not count them",
    "the file does not tell the prompts' lengths",
)


@IMPORTERS.register("genai-perf")
class GenaiPerf:
    """One JSON with a list of experiments."""

    def sniff(self, file: JsonFile) -> bool:
        """Recognise the experiments."""
        return isinstance(file.first.get("experiments"), list) and "service_kind" in file.first

    def read(self, file: JsonFile) -> list[LoadTest]:
        """Return one load test per experiment."""
        found = file.first.list("experiments")
        if not found:
            file.first.fail("no experiment in the file")
        return [_experiment(Record(f"{file.name}: experiment {i}", one)) for i, one in enumerate(found, 1)]


def _experiment(record: Record) -> LoadTest:
    requests = record.list("requests")
    found = [_genai_perf_row(Record(f"{record.place}: request {i}", one)) for i, one in enumerate(requests)]
    rows = [row for row in found if row is not None]
    load = record.part("experiment")
    note = f"load: {load.get('mode')} {load.get('value')}"
    return checked(
        LoadTest(
            record.place,
            "genai-perf",
            columns(rows, gaps_known=True),
            sent=len(requests),
            failed=len(found) - len(rows),
            notes=(*_NOTES, note),
        )
    )


def _genai_perf_row(request: Record) -> Row | None:
    """Return a request, None if it got no token or an error."""
    start_ns = request.count("timestamp")
    stamps, outputs = request.list("response_timestamps"), request.get("response_outputs") or []
    if outputs and len(outputs) != len(stamps):
        request.fail(f"{len(stamps)} response_timestamps, {len(outputs)} response_outputs")
    if request.get("success") is False:
        return None
    tokens = [at for i, at in enumerate(stamps) if not outputs or _has_content(outputs[i])]
    if not tokens:
        return None
    gaps = [later - earlier for earlier, later in pairwise(tokens)]
    return Row(start_ns, 0, len(tokens), tokens[0] - start_ns, tokens[-1] - start_ns, gaps)


def _has_content(output: dict[str, Any]) -> bool:
    """Return whether a response carries text; what cannot be read is taken to."""
    if "text_output" in output:
        return bool(output["text_output"])
    text = str(output.get("response", "")).strip().removeprefix("data:").strip()
    if text in ("", "[DONE]"):
        return False
    try:
        choices = json.loads(text).get("choices") or []
    except (json.JSONDecodeError, AttributeError):
        return True
    if not choices:
        return False
    delta = choices[0].get("delta", choices[0])
    return bool(delta.get("content") or delta.get("text") or delta.get("reasoning_content"))
