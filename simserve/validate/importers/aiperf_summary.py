"""AIPerf's and GenAI-Perf's statistics: profile_export_aiperf.json, profile_export_genai_perf.json.

One metric per key: {unit, avg, p50, p90 ...}. Their inter-token latency is our TPOT, AIPerf's inter-chunk
latency our ITL. Percentiles are the tool's own.
"""

from __future__ import annotations

from simserve.validate.importers.aiperf import NOTES, unit_ns
from simserve.validate.importers.base import IMPORTERS
from simserve.validate.importers.json_file import JsonFile, Record
from simserve.validate.importers.load_test import LoadTest
from simserve.validate.importers.sanity import checked
from simserve.validate.importers.statistics import statistics_of

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
            notes=(*NOTES, "statistics only: the tool's own percentiles, not recomputed"),
        )
        return [checked(test)]


def _value(record: Record, key: str) -> float | None:
    return record.part(key).number("avg") if key in record else None


def _errors(record: Record) -> int:
    return sum(int(one.get("count", 0)) for one in record.get("error_summary") or [])
