"""The capacity of a queue with a textbook answer: M/D/1 with a limit on the wait (Erlang 1909; Kleinrock)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from math import exp, factorial

import numpy as np
import pytest
from scipy.optimize import brentq

from simserve.metrics import summarize
from simserve.metrics.distribution import Batch
from simserve.metrics.targets import BATCHES, Target, batches_of
from simserve.study.capacity import Found, Search
from simserve.study.files import Row, row_of
from tests.analytic.test_queues import STEP_NS, server
from tests.laws.world import make_trace

LIMIT = 4.0
"""Longest wait, in service times."""
TARGET = Target("attainment", (("ttft_ms", (LIMIT + 1) * STEP_NS / 1e6),), 0.95)
REQUESTS, REPLICATIONS = 3000, 4
SEEDS = 100
CONFIDENCE = 0.9


def share_within(rho: float, limit: float) -> float:
    """P(wait <= limit service times) of M/D/1 (Erlang)."""
    terms = ((rho * (k - limit)) ** k / factorial(k) * exp(-rho * (k - limit)) for k in range(int(limit) + 1))
    return (1 - rho) * sum(terms)


TRUE_RHO = float(brentq(lambda rho: share_within(rho, LIMIT) - TARGET.share, 0.1, 0.95))


@cache
def unit_gaps(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).exponential(1.0, REQUESTS)


def waits(rho: float, seed: int) -> np.ndarray:
    """Waits in service times by Lindley's recursion, the server empty at first."""
    steps = np.concatenate([[0.0], np.cumsum(1.0 - unit_gaps(seed)[1:] / rho)])
    return steps - np.minimum.accumulate(steps)


def row_by_lindley(rho: float, seed: int) -> Row:
    steady = waits(rho, seed)[REQUESTS // 10 : -REQUESTS // 10]
    parts = np.array_split(steady <= LIMIT, BATCHES)
    return {"stability": "stable", "slo": {TARGET.name: [Batch(len(p), int(p.sum())) for p in parts]}}


def row_by_simulation(rho: float, seed: int) -> Row:
    gaps_ns = np.rint(unit_gaps(seed) / rho * STEP_NS).astype(np.int64)
    arrival_ns = np.cumsum(gaps_ns) - gaps_ns[0]
    trace = make_trace(arrival_ns, np.full(REQUESTS, 8), np.full(REQUESTS, 1))
    result = server("vllm").run(trace)
    row = row_of(summarize(result))
    return row | {"slo": batches_of(result, [TARGET])}


def capacity(
    seed: int,
    make=row_by_lindley,
    replications: int = REPLICATIONS,
    ahead: Callable[[int], None] = lambda more: None,
    ran: list[float] | None = None,
) -> tuple[Found, Search]:
    def runs(loads: Sequence[float]) -> list[list[Row]]:
        if ran is not None:
            ran.extend(loads)
        return [[make(rho, 1000 * seed + r) for r in range(replications)] for rho in loads]

    search = Search(runs, [TARGET], CONFIDENCE, precision=0.005, ahead=ahead)
    return search.find(0.2, 0.95), search


def test_the_true_capacity_is_a_load_below_one() -> None:
    assert 0.5 < TRUE_RHO < 0.9
    assert share_within(0.5, 1) == pytest.approx(0.5 * (exp(0.5) + (0.5 * 0) * 1))


def test_the_interval_holds_the_true_capacity_as_often_as_it_says() -> None:
    found = [capacity(seed)[0] for seed in range(SEEDS)]
    inside = sum(one.low is not None and one.low <= TRUE_RHO <= (one.high or 0) for one in found)
    assert inside >= 84  # 90 expected, standard deviation 3
    widths = [((one.high or 0) - (one.low or 0)) / TRUE_RHO for one in found]
    assert np.median(widths) < 0.15, "intervals so wide prove nothing"
    estimates = [one.estimate or 0 for one in found]
    assert np.mean(estimates) == pytest.approx(TRUE_RHO, rel=0.02)
    assert np.mean([one.low or 0 for one in found]) < TRUE_RHO < np.mean([one.high or 0 for one in found])


def test_the_simulator_gives_the_same_capacity_as_lindleys_recursion() -> None:
    by_hand, simulated = capacity(1, replications=1)[0], capacity(1, row_by_simulation, replications=1)[0]
    assert simulated.low == pytest.approx(by_hand.low, rel=0.01)
    assert simulated.high == pytest.approx(by_hand.high, rel=0.01)


@pytest.mark.parametrize("seed", range(10))
def test_the_loads_to_go_are_foreseen_and_do_not_start_again(seed: int) -> None:
    said: list[tuple[int, int]] = []
    _, search = capacity(seed, ahead=lambda more: said.append((more, len(ran))), ran=(ran := []))
    after = [*(done for _, done in said[1:]), len(search.rows)]  # when the round that was begun has ended
    for (foreseen, _), done in zip(said, after, strict=True):
        assert foreseen == pytest.approx(len(search.rows) - done, abs=7)
    assert max(b - a for (a, _), (b, _) in pairwise(said)) <= 3
    assert said[-1][0] == 0


def test_no_load_is_run_twice_and_few_are_run() -> None:
    _, search = capacity(7)
    assert len(search.rows) < 30
