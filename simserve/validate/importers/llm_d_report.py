"""llm-d's benchmark report, versions 0.1 and 0.2, YAML or JSON: statistics with declared units.

The report is converted from other tools' results and keeps their words, so they are read as that tool means
them: what AIPerf and guidellm call inter-token latency is TPOT, elsewhere it is ITL (guidellm's percentiles
are weighted by tokens and not used).
"""

from __future__ import annotations

from simserve.validate.importers.base import IMPORTERS
from simserve.validate.importers.json_file import JsonFile, Record
from simserve.validate.importers.load_test import LoadTest
from simserve.validate.importers.sanity import checked
from simserve.validate.importers.statistics import statistics_of

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
_RATES = {
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
        for theirs, ours in _RATES.items():
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
