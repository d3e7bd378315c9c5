"""Rates and cost by which deployments are ranked, on runs whose answer is known beforehand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from results_by_hand import MS, POOL, S, result

from simserve.core import Result
from simserve.metrics import Slo, Summary, summarize

N, RATE, OUTPUT = 3000, 30, 298


def served(stay_ms: float | np.ndarray, n: int = N, **columns: Any) -> Result:
    """30 requests/s of 298 output tokens on 12 GPUs at 2.5 per hour each: 30.0 per hour."""
    arrival = np.arange(n) * S // RATE
    last = arrival + (np.broadcast_to(stay_ms, n) * MS).astype(np.int64)
    base = {
        "arrival_ns": arrival,
        "first_scheduled_ns": arrival,
        "first_token_ns": arrival + 100 * MS,
        "last_token_ns": last,
        "output_tokens": np.full(n, OUTPUT),
    }
    pool = replace(POOL, replicas=1, gpus_per_replica=12, price_per_gpu_hour=2.5)
    return replace(result(**base | columns), pools=(pool,))


def summary(run: Result, **slo: float) -> Summary:
    return summarize(run, Slo(**slo) if slo else None)


@pytest.mark.parametrize("stay_ms", [200, 3_000, 12_000])
def test_the_drain_changes_neither_rates_nor_cost(stay_ms: float) -> None:
    """Whatever the latency: 30 requests/s, 8,940 tokens/s, 30 / 3,600 / 8,940 = 0.932 per million."""
    found = summary(served(stay_ms))
    rates = found.rates
    assert found.stability.verdict == "stable"
    assert rates.offered_requests_per_s == pytest.approx(RATE)
    assert rates.requests_per_s == rates.offered_requests_per_s
    assert rates.output_tokens_per_s == pytest.approx(RATE * OUTPUT)
    assert found.cost_per_million_output_tokens == pytest.approx(0.932, abs=0.0005)
    assert rates.drain_s == pytest.approx(stay_ms / 1000)
    assert found.whole.requests_per_s == pytest.approx(N / ((N - 1) / RATE + stay_ms / 1000))


def test_goodput_is_the_share_within_the_limits_of_what_arrives() -> None:
    """Every 100th request is late under one deployment, every 300th under the other, which drains longer."""
    one = served(np.where(np.arange(N) % 100 == 50, 9000, 500))
    other = served(np.where(np.arange(N) % 300 == 50, 9000, 500) + 1000)
    rates = [summary(run, e2e_ms=5000).rates.goodput_requests_per_s for run in (one, other)]
    assert rates == pytest.approx([30 * 0.99, 30 * 299 / 300], rel=1e-3)


def test_an_overload_serves_what_completes_while_it_lasts() -> None:
    """One request every 50 ms: 20 of 30 per second."""
    free = np.arange(N) * 50 * MS
    arrival = np.arange(N) * S // RATE
    start = np.maximum(arrival, free)
    found = summary(
        served(0, first_scheduled_ns=start, first_token_ns=start + MS, last_token_ns=start + 50 * MS)
    )
    assert found.stability.verdict == "unstable"
    assert found.rates.requests_per_s == pytest.approx(20, rel=1e-2)
    assert found.rates.offered_requests_per_s == pytest.approx(30)
    assert found.cost_per_million_output_tokens == pytest.approx(30 / 3600 / (20 * OUTPUT) * 1e6, rel=1e-2)


@pytest.mark.parametrize("n", [20, 300])
def test_a_run_that_is_over_before_its_answers_are_is_taken_whole(n: int) -> None:
    """Answers take 30 s and arrive within 10 s at most."""
    found = summary(served(30_000, n=n))
    assert found.stability.verdict in ("too short", "not judged")
    assert found.rates.requests_per_s == pytest.approx(n / ((n - 1) / RATE + 30))
    assert found.rates.basis == "completions of the whole run"


def test_all_at_once_is_taken_whole() -> None:
    zero = np.zeros(100, np.int64)
    done = np.arange(1, 101) * S
    at_once = {"arrival_ns": zero, "first_scheduled_ns": zero, "first_token_ns": done, "last_token_ns": done}
    found = summary(served(0, n=100, **at_once))
    assert found.rates.requests_per_s == pytest.approx(1)
    assert found.rates.offered_requests_per_s is None


def test_a_closed_loop_offers_nothing_and_serves_what_completes() -> None:
    found = summarize(served(3_000), closed_loop=True)
    assert found.rates.offered_requests_per_s is None
    assert found.rates.basis == "completions in the steady window"
    assert found.rates.requests_per_s == pytest.approx(RATE, rel=1e-2)
