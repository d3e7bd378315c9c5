"""What vLLM's `bench serve` and SGLang's `bench_serving` have in common: statistics, and lists per request.

Lists of equal length: input_lens, output_lens, ttfts (s), itls (s, a list each), errors; recent vLLM also
start_times (s, monotonic) and latencies (s). Neither stores a success flag: an error text, or nothing at all
measured, means failed. Without latencies E2E = TTFT + gaps. A TTFT of 0 without gaps was not measured.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simserve.validate.importers.json_file import Record
from simserve.validate.importers.load_test import Float64, LoadTest, Requests
from simserve.validate.importers.sanity import checked

LISTS = ("input_lens", "output_lens", "ttfts", "itls")
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
        if word in words and statistic != "std" and isinstance(value, int | float):
            found[f"{words[word]}.{'p50' if statistic == 'median' else statistic}"] = float(value)
    rates = {ours: record.maybe(theirs) for theirs, ours in _RATES.items()}
    return found | {name: rate for name, rate in rates.items() if rate is not None}


def _requests(record: Record) -> tuple[Requests, int, tuple[str, ...]]:
    """Return the requests that succeeded, how many failed, and what was odd."""
    lists = {name: record.list(name) for name in LISTS}
    n = len(lists["ttfts"])
    if not n:
        record.fail("the lists are empty; a load test holds at least one request")
    errors = record.get("errors") or [""] * n
    starts, latencies = record.get("start_times"), record.get("latencies")
    extra = {"errors": errors, "start_times": starts, "latencies": latencies}
    for name, values in {**lists, **extra}.items():
        if values is not None and len(values) != n:
            record.fail(f"{name} has {len(values)} entries, ttfts {n}")
    ttft_s = _numbers(record, "ttfts", lists["ttfts"])
    gaps = [_numbers(record, f"itls[{i}]", one or []) for i, one in enumerate(lists["itls"])]
    outputs = _numbers(record, "output_lens", lists["output_lens"])
    seen = ttft_s > 0
    nothing = ~seen & (outputs == 0) & np.array([not len(one) for one in gaps])
    failed = np.array([bool(error) for error in errors]) | nothing
    keep = np.flatnonzero(~failed)
    order = keep
    if starts is not None:
        start_s = _numbers(record, "start_times", starts)
        order = keep[np.argsort(start_s[keep], kind="stable")]
    e2e_s = np.where(seen, ttft_s + np.array([one.sum() for one in gaps]), 0)
    if latencies is not None:
        e2e_s = _numbers(record, "latencies", latencies)
    return (
        Requests(
            start_ns=None if starts is None else np.rint(1e9 * (start_s - start_s.min()))[order].astype(int),  # pyright: ignore[reportPossiblyUnbound]
            prompt_tokens=_numbers(record, "input_lens", lists["input_lens"])[order].astype(np.int64),
            output_tokens=outputs[order].astype(np.int64),
            ttft_ms=_milliseconds(ttft_s, seen)[order],
            e2e_ms=_milliseconds(e2e_s, e2e_s > 0)[order],
            gaps_ms=1e3 * np.concatenate([gaps[i] for i in order.tolist()] or [np.empty(0)]),
        ),
        int(failed.sum()),
        _odd(seen[order], outputs[order], [len(gaps[i]) for i in order.tolist()]),
    )


def _odd(seen: np.ndarray, outputs: Float64, gaps: list[int]) -> tuple[str, ...]:
    lines = []
    if missing := int((~seen).sum()):
        lines.append(f"{missing} requests without a first token on file (0 in the list): missing, not 0 ms")
    if fewer := int((np.array(gaps, np.int64)[seen] < outputs[seen] - 1).sum()):
        lines.append(f"{fewer} requests have fewer gaps than tokens: chunks carried several tokens")
    return tuple(lines)


def _milliseconds(seconds: Float64, present: np.ndarray) -> Float64:
    return np.where(present, 1e3 * seconds, np.nan)


def _numbers(record: Record, name: str, values: list[Any]) -> Float64:
    for i, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, int | float) or not np.isfinite(value):
            record.fail(f"{name}[{i}] is {value!r}; allowed is a finite number")
    return np.array(values, np.float64)
