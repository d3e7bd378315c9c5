"""What vLLM's `bench serve` and SGLang's `bench_serving` have in common: statistics, and lists per request.

Lists of equal length: input_lens, output_lens, ttfts (s), itls (s, a list each), errors; recent vLLM also
start_times (s, monotonic) and latencies (s). Neither stores a success flag: an error text, or nothing at all
measured, means failed. Without latencies E2E = TTFT + gaps. A TTFT of 0 without gaps was not measured.
"""

from __future__ import annotations

from math import isfinite, isnan
from typing import Any

from simserve.validate.importers.columns import NAN, Row, columns
from simserve.validate.importers.json_file import Record
from simserve.validate.importers.load_test import LoadTest, Requests
from simserve.validate.importers.sanity import checked

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
            record.fail(f"{name}[{i}] is {value!r}; allowed is a finite number")
    return values
