"""EWMA latency: averages by hand, forgetting, and no herd on a replica without samples."""

from __future__ import annotations

import pytest

from simserve.router.ewma_latency import EwmaLatencyParams, EwmaLatencyRouter, MovingAverage
from tests.router.states import MS, S, idle, request


def make(**options) -> EwmaLatencyRouter:
    return EwmaLatencyRouter(EwmaLatencyParams(**options), seed=0)


def sampled(router: EwmaLatencyRouter, latencies_ms: dict[int, int], replicas: int) -> EwmaLatencyRouter:
    """Let one request per replica named come back at 10 s after so many ms (by sending until it is hit)."""
    sent = {}
    for number in range(replicas):
        one = request(1000 + number, at_ns=0)
        sent[router.choose(one, idle(replicas), 0)] = one
    assert sorted(sent) == list(range(replicas))
    for replica, one in sent.items():
        if replica in latencies_ms:
            one.arrival_ns = 10 * S - latencies_ms[replica] * MS
            router.ended(one, 10 * S)
        else:
            one.arrival_ns = 10 * S
            router.ended(one, 10 * S)  # refused at once: says nothing of the latency
    return router


def test_a_sample_loses_half_its_weight_per_half_life() -> None:
    average = MovingAverage(half_life_ns=10 * S)
    average.add(400, 0)
    average.add(100, 10 * S)
    assert average.mean_ns() == pytest.approx((0.5 * 400 + 100) / 1.5)
    assert average.towards_ns(1000, 20 * S) == pytest.approx((0.25 * 400 + 0.5 * 100 + 1000) / (0.75 + 1))


def test_the_faster_replica_is_preferred() -> None:
    router = sampled(make(weigh_in_flight=False), {0: 300, 1: 100, 2: 200}, 3)
    assert router.choose(request(0, at_ns=10 * S), idle(3), 10 * S) == 1


def test_a_replica_without_samples_is_average_and_not_perfect() -> None:
    """Samples of 100 and 300 ms: drawn towards 200 these are 150 and 250; nothing reads as 200."""
    router = sampled(make(weigh_in_flight=False), {0: 100, 1: 300}, 3)
    assert [router.choose(request(n), idle(3), 10 * S) for n in range(20)] == [0] * 20
    router = sampled(make(weigh_in_flight=False), {0: 400, 1: 300}, 3)
    assert router.choose(request(0), idle(3), 10 * S) == 1, "325 against 350 for the one without samples"


def test_a_burst_does_not_herd_on_the_idle_replica() -> None:
    """Averages 150, 250, 200 times (in flight + 1): 30 requests go about as 1/150 : 1/250 : 1/200."""
    router = sampled(make(), {0: 100, 1: 300}, 3)
    chosen = [router.choose(request(n), idle(3), 10 * S) for n in range(30)]
    shares = [chosen.count(replica) for replica in range(3)]
    rates = [1 / 150, 1 / 250, 1 / 200]
    for share, rate in zip(shares, rates, strict=True):
        assert share == pytest.approx(30 * rate / sum(rates), abs=1)


def test_a_bad_sample_is_forgotten() -> None:
    """900 ms once; half-lives later the replica reads like the others again, and idle ones share."""
    router = sampled(make(weigh_in_flight=False), {0: 900, 1: 100}, 2)
    early = router._costs([0, 0], 10 * S)
    late = router._costs([0, 0], 110 * S)
    assert early == pytest.approx([(900 + 500) / 2 * MS, (100 + 500) / 2 * MS])
    assert late[0] / late[1] == pytest.approx(1, abs=0.002)


def test_before_any_sample_load_decides() -> None:
    router = make()
    assert [router.choose(request(n), idle(3), 0) for n in range(6)] == [0, 1, 2, 0, 1, 2]


def test_time_to_first_token_can_be_the_signal() -> None:
    router = make(signal="ttft", weigh_in_flight=False)
    slow, fast = request(0), request(1)
    assert [router.choose(one, idle(2), 0) for one in (slow, fast)] == [0, 1]
    router.first_token(slow, 300 * MS)
    router.first_token(fast, 100 * MS)
    router.ended(slow, 400 * MS)
    router.ended(fast, 90 * S)
    assert router.choose(request(2), idle(2), 90 * S) == 1
