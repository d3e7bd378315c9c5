"""vLLM's `vllm bench serve --save-result`, with or without `--save-detailed`; several runs if appended.

Its TPOT is ours, its ITL too (every gap), its E2EL is our E2E. Duration is the wall time of the whole run.
"""

from __future__ import annotations

from math import isfinite, isnan
from typing import Any

from simserve.validation.loadtests.base import IMPORTERS, NAN, LoadTest, Requests, Row, columns
from simserve.validation.loadtests.json_file import JsonFile, Record
from simserve.validation.loadtests.read import checked

# LLMServingSim's bench requests.jsonl: what a client sent to vLLM, and the engine's own stamps.
#
# Arrivals are wall-clock seconds, the engine's stamps monotonic ones. No difference across the two is known,
# so
# the clocks are set such that the smallest lag from an arrival to the engine's queue is 0: TTFT and E2E then
# lack that lag, the same for all.

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


# What vLLM's `bench serve` and SGLang's `bench_serving` have in common: statistics, and lists per request.
#
# Lists of equal length: input_lens, output_lens, ttfts (s), itls (s, a list each), errors; recent vLLM also
# start_times (s, monotonic) and latencies (s). Neither stores a success flag: an error text, or nothing at
# all
# measured, means failed. Without latencies E2E = TTFT + gaps. A TTFT of 0 without gaps was not measured.

_RATES = {
    "request_throughput": "requests_per_s",
    "output_throughput": "output_tokens_per_s",
    "total_token_throughput": "total_tokens_per_s",
    "total_throughput": "total_tokens_per_s",
}


def is_bench(record: Record) -> bool:
    """Return whether a record has the statistics, or the lists, of either tool."""
    stated = "mean_ttft_ms" in record and "request_throughput" in record
    return stated or all(isinstance(record.get(name), list) for name in ("ttfts", "itls"))


def read_bench(record: Record, format: str, words: dict[str, str], notes: tuple[str, ...]) -> LoadTest:
    """Return the load test of one record; `words` maps the tool's names of latencies to ours."""
    requests, failed, odd = (None, 0, ()) if "ttfts" not in record else _requests(record)
    completed = record.maybe("completed")
    sent = record.maybe("num_prompts")
    if requests is None:
        failed = int(record.maybe("failed") or (sent - completed if sent and completed is not None else 0))
        notes = (*notes, "statistics only: the tool's own percentiles, not recomputed")
    elif completed is not None and completed != len(requests):
        odd = (*odd, f"the file counts {completed:g} completed requests, its lists show {len(requests)}")
    done = len(requests) if requests is not None else int(completed or 0)
    return checked(
        LoadTest(
            source=record.place,
            format=format,
            requests=requests,
            stated=_stated(record, words),
            sent=int(sent) if sent is not None else done + failed,
            failed=failed,
            duration_s=record.maybe("duration"),
            notes=(*notes, *odd),
        )
    )


def _stated(record: Record, words: dict[str, str]) -> dict[str, float]:
    """Return the tool's statistics: `p99_ttft_ms` -> `ttft_ms.p99`."""
    found: dict[str, float] = {}
    for key, value in record.data.items():
        statistic, _, word = key.partition("_")
        if word in words and statistic != "std" and value is not None:
            found[f"{words[word]}.{'p50' if statistic == 'median' else statistic}"] = record.number(key)
    for theirs, ours in _RATES.items():
        if theirs in record:
            found.setdefault(ours, record.number(theirs))
    return found


def _requests(record: Record) -> tuple[Requests, int, tuple[str, ...]]:
    """Return the requests that succeeded, how many failed, and what was odd."""
    ttfts_s = _numbers(record, "ttfts", record.list("ttfts"))
    n = len(ttfts_s)
    if not n:
        record.fail("the lists are empty; a load test holds at least one request")
    inputs, outputs = (_numbers(record, name, record.list(name), n) for name in ("input_lens", "output_lens"))
    gaps_s = _equally_long(record, "itls", record.list("itls"), n)
    errors = _equally_long(record, "errors", record.get("errors") or [""] * n, n)
    starts_s, ends_s = (record.get(name) for name in ("start_times", "latencies"))
    starts_s = [0.0] * n if starts_s is None else _numbers(record, "start_times", starts_s, n)
    ends_s = None if ends_s is None else _numbers(record, "latencies", ends_s, n)
    rows: list[Row] = []
    for i, ttft_s in enumerate(ttfts_s):
        gaps = _numbers(record, f"itls[{i}]", gaps_s[i] or [])
        if errors[i] or not (ttft_s or gaps or outputs[i]):
            continue
        e2e_s = ends_s[i] if ends_s else ttft_s + sum(gaps) if ttft_s else 0
        rows.append(
            Row(
                round(1e9 * starts_s[i]),
                int(inputs[i]),
                int(outputs[i]),
                1e9 * ttft_s or NAN,
                1e9 * e2e_s or NAN,
                [1e9 * gap for gap in gaps],
            )
        )
    found = columns(rows, gaps_known=True, starts_known="start_times" in record)
    return found, n - len(rows), _odd(rows)


def _odd(rows: list[Row]) -> tuple[str, ...]:
    lines = []
    if missing := sum(isnan(row.ttft_ns) for row in rows):
        lines.append(f"{missing} requests without a first token on file (0 in the list): missing, not 0 ms")
    if fewer := sum(not isnan(row.ttft_ns) and len(row.gaps_ns) < row.output_tokens - 1 for row in rows):
        lines.append(f"{fewer} requests have fewer gaps than tokens: chunks carried several tokens")
    return tuple(lines)


def _equally_long(record: Record, name: str, values: list[Any], n: int | None) -> list[Any]:
    if n is not None and len(values) != n:
        record.fail(f"{name} has {len(values)} entries, ttfts {n}")
    return values


def _numbers(record: Record, name: str, values: list[Any], n: int | None = None) -> list[float]:
    for i, value in enumerate(_equally_long(record, name, values, n)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
            record.fail(f"{name}[{i}] is {value!r}; allowed: a finite number")
    return values


# SGLang's `bench_serving --output-file`, a JSON line per run, with or without `--output-details`.
#
# Its TPOT, ITL and E2E latency are ours. It stores no send times.

ONLY_SGLANG = {"mean_e2e_latency_ms", "total_output_tokens_retokenized", "server_info", "accept_length"}
"""Keys that vLLM's tool never writes."""
_WORDS = {"ttft_ms": "ttft_ms", "tpot_ms": "tpot_ms", "itl_ms": "itl_ms", "e2e_latency_ms": "e2e_ms"}


@IMPORTERS.register("sglang-bench")
class SglangBench:
    """One JSON line per run."""

    def sniff(self, file: JsonFile) -> bool:
        """Recognise the statistics or the lists, and a key of its own."""
        return is_bench(file.first) and bool(ONLY_SGLANG & file.first.data.keys())

    def read(self, file: JsonFile) -> list[LoadTest]:
        """Return one load test per line."""
        return [read_bench(one, "sglang-bench", _WORDS, ()) for one in file.records]


_VLLM_BENCH_WORDS = {"ttft_ms": "ttft_ms", "tpot_ms": "tpot_ms", "itl_ms": "itl_ms", "e2el_ms": "e2e_ms"}


@IMPORTERS.register("vllm-bench")
class VllmBench:
    """One JSON, or one per line."""

    def sniff(self, file: JsonFile) -> bool:
        """Recognise the statistics or the lists."""
        return is_bench(file.first) and not ONLY_SGLANG & file.first.data.keys()

    def read(self, file: JsonFile) -> list[LoadTest]:
        """Return one load test per run."""
        return [read_bench(one, "vllm-bench", _VLLM_BENCH_WORDS, ()) for one in file.records]
