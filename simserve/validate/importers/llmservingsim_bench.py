"""LLMServingSim's bench requests.jsonl: what a client sent to vLLM, and the engine's own stamps.

Arrivals are wall-clock seconds, the engine's stamps monotonic ones. No difference across the two is known, so
the clocks are set such that the smallest lag from an arrival to the engine's queue is 0: TTFT and E2E then
lack that lag, the same for all.
"""

from __future__ import annotations

from simserve.validate.importers.base import IMPORTERS
from simserve.validate.importers.columns import Row, columns
from simserve.validate.importers.json_file import JsonFile, Record
from simserve.validate.importers.load_test import LoadTest
from simserve.validate.importers.sanity import checked

_KEYS = {"arrival_time", "queued_ts", "first_token_ts", "last_token_ts"}
_NOTES = ("two clocks, set such that the smallest lag from arrival to queue is 0: latencies lack it",)


@IMPORTERS.register("llmservingsim-bench")
class LlmServingSimBench:
    """JSON lines."""

    def sniff(self, file: JsonFile) -> bool:
        """Recognise the stamps of both clocks."""
        return file.first.data.keys() >= _KEYS

    def read(self, file: JsonFile) -> list[LoadTest]:
        """Return the one load test of the file."""
        done = [record for record in file.records if "last_token_ts" in record]
        lags = [record.number("queued_ts") - record.number("arrival_time") for record in done]
        test = LoadTest(
            file.name,
            "llmservingsim-bench",
            columns([_row(record, min(lags)) for record in done], gaps_known=False),
            sent=len(file.records),
            failed=len(file.records) - len(done),
            notes=_NOTES,
        )
        return [checked(test)]


def _row(record: Record, lag_s: float) -> Row:
    start_s = record.number("arrival_time")
    return Row(
        round(1e9 * start_s),
        record.count("input_toks"),
        record.count("output_toks"),
        1e9 * (record.number("first_token_ts") - start_s - lag_s),
        1e9 * (record.number("last_token_ts") - start_s - lag_s),
    )
