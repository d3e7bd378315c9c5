"""A load test as a run that can be compared with simulated ones: the same statistics by the same definitions.

What a client cannot see (queueing, KV, preemptions, the engine's settings) is absent.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from simserve.core import TokenGaps
from simserve.metrics.comparison import requests_sha256
from simserve.metrics.definitions import DEFINITIONS
from simserve.metrics.distribution import Distribution, of_gaps_ms, of_values
from simserve.metrics.store import StoredRun
from simserve.units import NS_PER_MS, NS_PER_S
from simserve.validate.importers.load_test import Float64, LoadTest, Requests
from simserve.validate.load_test_trace import replay_order

LATENCIES = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms", "queueing_ms", "requeued_ms", "normalised_ms")
RATES = ("requests_per_s", "output_tokens_per_s", "total_tokens_per_s")
_UNSEEN = ("kv_use_mean", "hit_rate", "preemptions", "slo")


def run_of(test: LoadTest) -> StoredRun:
    """Return the load test with the summary, the manifest and the tables of a run."""
    found = test.requests
    facts = {
        "source": test.source,
        "format": test.format,
        "sent": test.sent,
        "completed": test.completed,
        "failed": test.failed,
        "left_out": test.left_out,
        "per_request": found is not None,
        "notes": list(test.notes),
    }
    manifest: dict[str, Any] = {"measured": facts, "scenario_name": test.source}
    held = {"requests": pa.table(_columns(None)), "gaps": _gap_table(None)}
    if found is not None:
        found = found.rows(replay_order(found))
        manifest["trace"] = {"requests_sha256": requests_sha256(found.prompt_tokens, found.output_tokens)}
        held = {"requests": pa.table(_columns(found)), "gaps": _gap_table(found.gaps_ms)}
    return StoredRun(Path(test.source), _summary(test), manifest, "", held)


def _summary(test: LoadTest) -> dict[str, Any]:
    whole = _stated(test) if test.requests is None else _recomputed(test, test.requests)
    return {
        "schema": 1,
        "counts": {"requests": test.sent, "completed": test.completed},
        "whole": whole | dict.fromkeys(_UNSEEN),
        "stability": {"verdict": "not judged", "reason": "a client does not see the queue"},
        "pools": [],
        "replicas": [],
        "provenance": {},
        "cost_per_million_output_tokens": None,
        "warnings": [],
        "definitions": dict(DEFINITIONS),
    }


def _stated(test: LoadTest) -> dict[str, Any]:
    """Return the tool's own statistics where ours stand; what it does not state is absent."""
    whole: dict[str, Any] = {name: asdict(Distribution()) for name in LATENCIES}
    whole |= {name: test.stated.get(name) for name in RATES}
    for name, value in test.stated.items():
        latency, dot, statistic = name.partition(".")
        if dot:
            whole[latency][statistic] = value
    return {"duration_s": test.duration_s, **whole}


def _recomputed(test: LoadTest, found: Requests) -> dict[str, Any]:
    whole = {name: asdict(Distribution()) for name in LATENCIES}
    columns = _columns(found)
    for name in ("ttft_ms", "tpot_ms", "e2e_ms"):
        whole[name] = asdict(of_values(columns[name]))
    whole["normalised_ms"] = asdict(of_values(found.e2e_ms / np.maximum(found.output_tokens, 1)))
    if found.gaps_ms is not None:
        whole["itl_ms"] = asdict(of_gaps_ms(_gaps(found.gaps_ms)))
    duration_s = _duration_s(test, found)
    amounts = (len(found), found.output_tokens.sum(), (found.output_tokens + found.prompt_tokens).sum())
    rates = {
        name: float(n) / duration_s if duration_s else None for name, n in zip(RATES, amounts, strict=True)
    }
    if not found.prompt_tokens.any():  # the tool does not tell
        rates["total_tokens_per_s"] = None
    return {"duration_s": duration_s, **whole, **rates}


def _duration_s(test: LoadTest, found: Requests) -> float | None:
    """Return the time from the first send to the last token; if not all are known, what the tool states."""
    if found.start_ns is None or not len(found) or np.isnan(found.e2e_ms).any():
        return test.duration_s
    return float(np.max(found.start_ns / NS_PER_S + found.e2e_ms / 1e3))


def _columns(found: Requests | None) -> dict[str, Any]:
    """Return the columns of requests.parquet that a client knows."""
    empty = np.empty(0)
    if found is None:
        found = Requests(None, empty.astype(np.int64), empty.astype(np.int64), empty, empty)
    several = found.output_tokens > 1
    tpot_ms = np.where(
        several, (found.e2e_ms - found.ttft_ms) / np.maximum(found.output_tokens - 1, 1), np.nan
    )
    return {
        "request": np.arange(len(found)),
        "prompt_tokens": found.prompt_tokens,
        "output_tokens": found.output_tokens,
        "ttft_ms": found.ttft_ms,
        "tpot_ms": tpot_ms,
        "e2e_ms": found.e2e_ms,
        "status": pa.array(["completed"] * len(found), pa.string()),
    }


def _gaps(gaps_ms: Float64) -> TokenGaps:
    gap_ns, count = np.unique(np.rint(gaps_ms * NS_PER_MS), return_counts=True)
    return TokenGaps(gap_ns, count.astype(np.int64), int((gap_ns * count).sum()))


def _gap_table(gaps_ms: Float64 | None) -> pa.Table:
    gaps = _gaps(np.empty(0) if gaps_ms is None else gaps_ms)
    window = pa.array(["whole"] * len(gaps.gap_ns), pa.string())
    return pa.table({"window": window, "gap_ns": gaps.gap_ns, "count": gaps.count})
