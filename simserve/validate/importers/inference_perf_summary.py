"""inference-perf's summary_ and stage_N_lifecycle_metrics.json: statistics of the requests that succeeded.

Seconds. Its time per output token is our TPOT, its inter-token latency our ITL, its normalised one E2E / n.
"""

from __future__ import annotations

from simserve.validate.importers.base import IMPORTERS
from simserve.validate.importers.json_file import JsonFile
from simserve.validate.importers.load_test import LoadTest
from simserve.validate.importers.sanity import checked
from simserve.validate.importers.statistics import statistics_of

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
