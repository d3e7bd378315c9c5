"""inference-perf's per_request_lifecycle_metrics.json: a list of requests with the stamp of each token.

Times are seconds of one monotonic clock. Output lengths are the server's where it reported them, else the
client's own count of the text. Its inter-token latency is our ITL; TPOT is recomputed.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from simserve.validation.loadtests.base import IMPORTERS, NAN, LoadTest, Row, columns, statistics_of
from simserve.validation.loadtests.json_file import JsonFile, Record
from simserve.validation.loadtests.read import checked, one_clock


@IMPORTERS.register("inference-perf")
class InferencePerf:
    """One JSON list."""

    def sniff(self, file: JsonFile) -> bool:
        """Recognise requests with a start, an end and an info."""
        return file.is_list and {"start_time", "end_time", "info"} <= file.first.data.keys()

    def read(self, file: JsonFile) -> list[LoadTest]:
        """Return the one load test of the file."""
        failed = [bool(record.get("error")) for record in file.records]
        kept = [record for record, bad in zip(file.records, failed, strict=True) if not bad]
        rows = [_row(record) for record in kept]
        notes = []
        if many := sum(len(row.gaps_ns) >= row.output_tokens > 0 for row in rows):
            notes.append(f"{many} requests have more stamps than tokens: their gaps (ITL) are too short")
        test = LoadTest(
            file.name,
            "inference-perf",
            columns(rows, gaps_known=True),
            sent=len(failed),
            failed=sum(failed),
            notes=tuple(notes),
            latency_notes=("its inter-token latency is ITL here; TPOT is recomputed",),
        )
        return [checked(test)]


def _row(record: Record) -> Row:
    start, end = record.number("start_time"), record.number("end_time")
    info = record.part("info")
    response = info.part("response_metrics") if "response_metrics" in info else info
    stamps = response.get("output_token_times") or []
    one_clock(record.place, np.array([start, end, *stamps], np.float64))
    gaps = 1e9 * np.diff(np.array(stamps, np.float64))
    last = stamps[-1] if stamps else end
    return Row(
        round(start * 1e9),
        _prompt_tokens(info),
        _output_tokens(response),
        1e9 * (stamps[0] - start) if stamps else NAN,
        1e9 * (last - start),
        gaps.tolist(),
        record.get("session_id"),
        text=_text(record.get("request")),
    )


def _text(body: Any) -> str | None:
    """Return the prompt in a request's body: a text, or all messages one after the other."""
    if not isinstance(body, str):
        return None
    try:
        parsed = json.loads(body)
    except json.JSONDecodeError:
        return body
    if not isinstance(parsed, dict):
        return body
    messages = parsed.get("messages") or [{"content": parsed.get("prompt", body)}]
    return "".join(f"{one.get('role', '')}{one.get('content', '')}" for one in messages)


def _prompt_tokens(info: Record) -> int:
    text = info.part("request_metrics").part("text")
    return text.count("input_tokens") if text.data else info.count("input_tokens")


def _output_tokens(response: Record) -> int:
    usage = response.part("server_usage")
    for key in ("completion_tokens", "output_tokens"):
        if key in usage:
            return usage.count(key)
    return response.count("output_tokens")


# inference-perf's summary_ and stage_N_lifecycle_metrics.json: statistics of the requests that succeeded.
#
# Seconds. Its time per output token is our TPOT, its inter-token latency our ITL, its normalised one E2E / n.

_LATENCIES = {
    "time_to_first_token": "ttft_ms",
    "time_per_output_token": "tpot_ms",
    "inter_token_latency": "itl_ms",
    "request_latency": "e2e_ms",
    "normalized_time_per_output_token": "normalised_ms",
}
_RATES = {
    "requests_per_sec": "requests_per_s",
    "output_tokens_per_sec": "output_tokens_per_s",
    "total_tokens_per_sec": "total_tokens_per_s",
}


@IMPORTERS.register("inference-perf-summary")
class InferencePerfSummary:
    """One JSON."""

    def sniff(self, file: JsonFile) -> bool:
        """Recognise load, successes and failures."""
        return {"load_summary", "successes", "failures"} <= file.first.data.keys()

    def read(self, file: JsonFile) -> list[LoadTest]:
        """Return the one load test of the file."""
        record = file.first
        successes = record.part("successes")
        stated: dict[str, float] = {}
        for theirs, ours in _LATENCIES.items():
            stated |= statistics_of(successes.part("latency").part(theirs), ours, 1e3)
        for theirs, ours in _RATES.items():
            rate = successes.part("throughput").maybe(theirs)
            if rate is not None:
                stated[ours] = rate
        done, failed = successes.count("count"), record.part("failures").count("count")
        test = LoadTest(
            file.name,
            "inference-perf-summary",
            None,
            stated,
            sent=done + failed,
            failed=failed,
            duration_s=record.maybe("benchmark_time_seconds"),
            notes=("statistics only: the tool's own percentiles, not recomputed",),
        )
        return [checked(test)]


# llm-d's benchmark report, versions 0.1 and 0.2, YAML or JSON: statistics with declared units.
#
# The report is converted from other tools' results and keeps their words, so they are read as that tool means
# them: what AIPerf and guidellm call inter-token latency is TPOT, elsewhere it is ITL (guidellm's percentiles
# are weighted by tokens and not used).

_UNITS_MS = {"s": 1e3, "s/token": 1e3, "ms": 1.0, "ms/token": 1.0, "us": 1e-3, "us/token": 1e-3, "ns": 1e-6}
_WORDS = {
    "time_to_first_token": "ttft_ms",
    "time_per_output_token": "tpot_ms",
    "inter_token_latency": "itl_ms",
    "request_latency": "e2e_ms",
    "normalized_time_per_output_token": "normalised_ms",
}
_TOOLS = {
    "aiperf": {"inter_token_latency": "tpot_ms", "time_per_output_token": ""},
    "guidellm": {"inter_token_latency": "itl_ms", "time_per_output_token": ""},
}
"""Words that a tool uses otherwise; empty: for nothing of ours."""
_LLM_D_REPORT_RATES = {
    "request_rate": "requests_per_s",
    "requests_per_sec": "requests_per_s",
    "output_token_rate": "output_tokens_per_s",
    "output_tokens_per_sec": "output_tokens_per_s",
    "total_token_rate": "total_tokens_per_s",
    "total_tokens_per_sec": "total_tokens_per_s",
}


@IMPORTERS.register("llm-d-report")
class LlmDReport:
    """One YAML or JSON."""

    def sniff(self, file: JsonFile) -> bool:
        """Recognise the scenario and the results of either version."""
        return {"version", "scenario"} <= file.first.data.keys() and _results(file.first).data != {}

    def read(self, file: JsonFile) -> list[LoadTest]:
        """Return the one load test of the file."""
        results, load = _results(file.first), file.first.part("scenario").part("load")
        tool = str(load.part("standardized").get("tool") or load.get("name") or "a tool not named")
        stated = _latencies(results.part("latency"), tool)
        for theirs, ours in _LLM_D_REPORT_RATES.items():
            rate = results.part("throughput").get(theirs)
            if rate is not None:
                of = Record(results.place, rate if isinstance(rate, dict) else {"mean": rate})
                stated[ours] = of.number("mean")
        requests = results.part("requests")
        failed = int(requests.maybe("failures") or 0) + int(requests.maybe("incomplete") or 0)
        test = LoadTest(
            file.name,
            "llm-d-report",
            None,
            stated,
            sent=requests.count("total") if "total" in requests else None,
            failed=failed,
            notes=(f"measured by {tool}; statistics only, read as that tool means them",),
        )
        return [checked(test)]


def _results(report: Record) -> Record:
    """Return the results of one report: version 0.2, else 0.1."""
    found = report.part("results").part("request_performance").part("aggregate")
    return found if found.data else report.part("metrics")


def _latencies(latency: Record, tool: str) -> dict[str, float]:
    words = _WORDS | _TOOLS.get(tool.lower().split(" ")[0], {})
    stated: dict[str, float] = {}
    for theirs, ours in words.items():
        metric = latency.part(theirs)
        if not metric.data or not ours:
            continue
        unit = metric.get("units")
        if unit not in _UNITS_MS:
            metric.fail(f"units {unit!r}, known: {', '.join(_UNITS_MS)}")
        found = statistics_of(metric, ours, _UNITS_MS[unit])
        weighted = tool.lower() == "guidellm" and ours == "itl_ms"
        stated |= {k: v for k, v in found.items() if k.endswith(".mean")} if weighted else found
    return stated
