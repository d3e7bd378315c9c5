"""guidellm's benchmarks.json: one benchmark per load, requests by how they ended, statistics beside them.

Its inter-token latency per request is our TPOT; in its statistics tokens are the weight, so only its mean is
comparable, with our mean ITL. Its time per output token (E2E / tokens, weighted) is none of ours. Times are
seconds of the wall clock; E2E counts to the last token, not to the end of the stream.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simserve.validation.loadtests.base import IMPORTERS, NAN, LoadTest, Row, columns, statistics_of
from simserve.validation.loadtests.json_file import JsonFile, Record
from simserve.validation.loadtests.read import checked, one_clock

_NOTES = ("its inter-token latency per request is TPOT here; its time per output token is not used",)
_LATENCIES = {"time_to_first_token_ms": ("ttft_ms", 1.0), "request_latency": ("e2e_ms", 1e3)}
_RATES = {
    "requests_per_second": "requests_per_s",
    "output_tokens_per_second": "output_tokens_per_s",
    "tokens_per_second": "total_tokens_per_s",
}


@IMPORTERS.register("guidellm")
class Guidellm:
    """One JSON or YAML with a list of benchmarks."""

    def sniff(self, file: JsonFile) -> bool:
        """Recognise benchmarks with metrics or requests."""
        found = file.first.get("benchmarks")
        return isinstance(found, list) and all(
            isinstance(one, dict) and ("metrics" in one or "requests" in one) for one in found
        )

    def read(self, file: JsonFile) -> list[LoadTest]:
        """Return one load test per benchmark."""
        found = file.first.list("benchmarks")
        if not found:
            file.first.fail("no benchmark in the file")
        return [_benchmark(Record(f"{file.name}: benchmark {i}", one)) for i, one in enumerate(found, 1)]


def _benchmark(record: Record) -> LoadTest:
    groups = record.part("requests")
    listed = {name: groups.get(name) or [] for name in ("successful", "incomplete", "errored")}
    rows = [_row(Record(f"{record.place}: request {i}", one)) for i, one in enumerate(listed["successful"])]
    one_clock(record.place, np.array([row.start_ns for row in rows], np.float64) / 1e9)
    totals = _totals(record)
    counts = {name: totals.get(name, len(found)) for name, found in listed.items()}
    notes: list[str] = []
    if rows and counts["successful"] != len(rows):
        notes.append(f"a sample: {len(rows)} of {counts['successful']} successful requests are on file")
    return checked(
        LoadTest(
            record.place,
            "guidellm",
            columns(rows, gaps_known=False) if rows else None,
            _stated(record.part("metrics")),
            sent=counts["successful"] + counts["errored"],
            failed=counts["errored"],
            left_out=counts["incomplete"],
            duration_s=_duration_s(record),
            notes=tuple(notes),
            latency_notes=_NOTES,
        )
    )


def _row(request: Record) -> Row:
    timings = request.part("info").part("timings")
    start = _first(request, timings, ("request_start", "start_time", "request_start_time"))
    first = _first(request, timings, ("first_token_iteration", "first_token_time"))
    last = _first(request, timings, ("last_token_iteration", "last_token_time", "request_end", "end_time"))
    if start is None:
        request.fail("no request_start or start_time")
    conversation = request.part("info").get("conversation_id")
    return Row(
        round(start * 1e9),
        _tokens(request, "prompt_tokens", "input_metrics"),
        _tokens(request, "output_tokens", "output_metrics"),
        NAN if first is None else 1e9 * (first - start),
        NAN if last is None else 1e9 * (last - start),
        session=conversation,
    )


def _first(request: Record, timings: Record, keys: tuple[str, ...]) -> float | None:
    """Return the first value that there is, in the timings or (older versions) in the request itself."""
    for key in keys:
        for place in (timings, request):
            if key in place:
                return place.number(key)
    return None


def _tokens(request: Record, key: str, usage: str) -> int:
    if key in request:
        return request.count(key)
    metrics = request.part(usage)
    for name in ("total_tokens", "text_tokens"):
        if name in metrics:
            return metrics.count(name)
    return request.fail(f"no {key}: a request without its lengths cannot be compared or replayed")


def _totals(record: Record) -> dict[str, int]:
    for place in (record.part("metrics").part("request_totals"), record.part("request_totals")):
        if place.data:
            return {name: place.count(name) for name in ("successful", "incomplete", "errored")}
    made = record.part("scheduler_metrics").part("requests_made")
    return {name: made.count(name) for name in ("successful", "incomplete", "errored") if name in made}


def _stated(metrics: Record) -> dict[str, float]:
    found: dict[str, float] = {}
    for theirs, (ours, scale) in _LATENCIES.items():
        of = metrics.part(theirs).part("successful")
        merged: dict[str, Any] = {**of.part("percentiles").data, **of.data}
        found |= statistics_of(Record(of.place, merged), ours, scale)
    gaps = metrics.part("inter_token_latency_ms").part("successful")
    if "mean" in gaps:
        found["itl_ms.mean"] = gaps.number("mean")
    for theirs, ours in _RATES.items():
        of = metrics.part(theirs).part("successful")
        if "mean" in of:
            found[ours] = of.number("mean")
    return found


def _duration_s(record: Record) -> float | None:
    if "duration" in record:
        return record.number("duration")
    if "start_time" in record and "end_time" in record:
        return record.number("end_time") - record.number("start_time")
    return None
