"""inference-perf's per_request_lifecycle_metrics.json: a list of requests with the stamp of each token.

Times are seconds of one monotonic clock. Output lengths are the server's where it reported them, else the
client's own count of the text. Its inter-token latency is our ITL; TPOT is recomputed.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from simserve.validate.importers.base import IMPORTERS
from simserve.validate.importers.columns import NAN, Row, columns
from simserve.validate.importers.json_file import JsonFile, Record
from simserve.validate.importers.load_test import LoadTest
from simserve.validate.importers.sanity import checked, one_clock


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
        notes = ["its inter-token latency is ITL here; TPOT is recomputed"]
        if many := sum(len(row.gaps_ns) >= row.output_tokens > 0 for row in rows):
            notes.append(f"{many} requests have more stamps than tokens: their gaps (ITL) are too short")
        test = LoadTest(
            file.name,
            "inference-perf",
            columns(rows, gaps_known=True),
            sent=len(failed),
            failed=sum(failed),
            notes=tuple(notes),
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
