"""The 'queue grows' verdict on series whose answer is known beforehand."""

from __future__ import annotations

import numpy as np
import pytest
from results_by_hand import MS, S, result

from simserve.core import Status
from simserve.metrics.stability import judge


def single_server(arrival, service_ns):
    """First come, first served, one at a time (Lindley's recursion): start = max(arrival, previous end)."""
    arrival = np.asarray(arrival, dtype=np.int64)
    starts, free = np.empty_like(arrival), 0
    for i, at in enumerate(arrival.tolist()):
        starts[i] = max(at, free)
        free = int(starts[i]) + service_ns
    return result(arrival_ns=arrival, first_scheduled_ns=starts, first_token_ns=starts + service_ns)


def poisson(n, rate, seed=0):
    return np.cumsum(np.random.default_rng(seed).exponential(S / rate, n)).astype(np.int64)


def test_regular_arrivals_at_130_percent_grow_as_arithmetic_says():
    """Every 10 ms in, every 13 ms out: of 1000 arrivals 9990 / 13 -> 769 have started when the last comes."""
    found = judge(single_server(np.arange(1000) * 10 * MS, 13 * MS))
    assert found.verdict == "unstable"
    assert found.backlog_requests == 1000 - 769
    assert found.backlog_share == pytest.approx(231 / 769)
    thirds = found.waiting_by_third
    assert thirds is not None
    assert thirds[2] / thirds[0] == pytest.approx(5, rel=0.05), "a line from zero: means 1 : 3 : 5"


def test_regular_arrivals_at_70_percent_never_wait():
    found = judge(single_server(np.arange(1000) * 10 * MS, 7 * MS))
    assert (found.verdict, found.backlog_requests) == ("stable", 0)
    assert found.waiting_by_third == (0, 0, 0)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    ("load", "verdict"), [(0.7, "stable"), (0.9, "stable"), (1.15, "unstable"), (1.3, "unstable")]
)
def test_poisson_arrivals(load, verdict, seed):
    assert judge(single_server(poisson(4000, 100, seed), round(load * 10 * MS))).verdict == verdict


@pytest.mark.parametrize("seed", range(20))
def test_a_small_overload_shows_in_a_long_run(seed):
    """At 1.04 of the capacity a 26th of 40,000 waits at the end: 3.8 %, but 7.7 times the root of 40,000."""
    found = judge(single_server(poisson(40_000, 100, seed), round(1.04 * 10 * MS)))
    assert found.verdict == "unstable"
    assert found.backlog_share is not None
    assert found.backlog_share < 0.06
    assert judge(single_server(poisson(40_000, 100, seed), round(0.97 * 10 * MS))).verdict == "stable"


def test_a_full_server_is_seldom_called_unstable():
    """At a load of exactly 1 the queue is a random walk: more than 2 * sqrt(n) is left in 1 of 20 runs."""
    verdicts = [judge(single_server(poisson(40_000, 100, seed), 10 * MS)).verdict for seed in range(40)]
    assert verdicts.count("unstable") <= 6


def test_bursts_that_drain_are_stable():
    """200 at once every 10 s, drained in 2 s each time: waiting is high, but not higher and higher."""
    bursts = np.repeat(np.arange(12) * 10 * S, 200)
    quiet = np.array([125 * S])
    found = judge(single_server(np.concatenate([bursts, quiet]), 10 * MS))
    assert found.verdict == "stable"
    assert min(found.waiting_by_third or (0,)) > 10


def test_one_long_backlog_that_drains_before_the_end_is_stable():
    burst, trickle = np.zeros(3000, np.int64), poisson(2000, 20)
    assert judge(single_server(np.sort(np.concatenate([burst, trickle])), 10 * MS)).verdict == "stable"


def test_load_that_turns_into_overload_is_unstable():
    calm, storm = np.arange(1000) * 20 * MS, 20 * S + np.arange(2000) * 5 * MS
    assert judge(single_server(np.concatenate([calm, storm]), 10 * MS)).verdict == "unstable"


def test_a_cut_run_is_judged_by_what_still_waits():
    """Half of the requests were never scheduled when the run was stopped."""
    arrival = np.arange(100) * S
    run = result(
        arrival_ns=arrival,
        first_scheduled_ns=np.where(np.arange(100) % 2, -1, arrival),
        status=np.where(np.arange(100) % 2, int(Status.UNFINISHED), 0),
    )
    assert judge(run).verdict == "unstable"


def test_refused_requests_do_not_queue():
    arrival = np.arange(100) * S
    run = result(
        arrival_ns=arrival,
        first_scheduled_ns=np.where(np.arange(100) % 2, -1, arrival),
        status=np.where(np.arange(100) % 2, int(Status.REFUSED), 0),
    )
    assert judge(run).verdict == "stable"


def test_closed_loops_few_requests_and_one_instant_are_not_judged():
    growing = single_server(np.arange(1000) * 10 * MS, 13 * MS)
    assert judge(growing, closed_loop=True).verdict == "not judged"
    assert judge(single_server(np.arange(29) * 10 * MS, 13 * MS)).verdict == "not judged"
    assert judge(single_server(np.zeros(500), 13 * MS)).verdict == "not judged"
