"""Sticky sessions and consistent hashing."""

from __future__ import annotations

from collections import Counter

import pytest

from simserve.router.affinity import (
    ConsistentHashParams,
    ConsistentHashRouter,
    SessionAffinityParams,
    SessionAffinityRouter,
)
from tests.router.states import Given, Seen, idle, request


def loads(*counts: int) -> list[Seen]:
    return [Seen(outstanding_requests=count) for count in counts]


def test_turns_follow_their_session() -> None:
    router = SessionAffinityRouter(SessionAffinityParams(), seed=0, sessions=[5, 6, 5, 6, 7])
    assert router.choose(request(0), loads(1, 0), 0) == 1
    assert router.choose(request(1), loads(1, 2), 0) == 0
    assert router.choose(request(2), loads(0, 99), 0) == 1
    assert router.choose(request(3), loads(99, 0), 0) == 0
    assert router.choose(request(4), loads(99, 0), 0) == 1


def test_a_session_moves_away_from_a_full_replica_for_good() -> None:
    params = SessionAffinityParams(max_outstanding_requests=10)
    router = SessionAffinityRouter(params, seed=0, sessions=[5, 5, 5, 5])
    assert router.choose(request(0), loads(0, 1), 0) == 0
    assert router.choose(request(1), loads(9, 1), 0) == 0
    assert router.choose(request(2), loads(10, 1), 0) == 1
    assert router.choose(request(3), loads(0, 5), 0) == 1


def test_without_sessions_load_decides_and_it_is_said() -> None:
    router = SessionAffinityRouter(SessionAffinityParams(), seed=0)
    assert [router.choose(request(n), idle(3), 0) for n in range(4)] == [0, 1, 2, 0]
    assert router.assumptions == ("the trace has no sessions: session affinity has no effect",)


def ring(seed: int = 0, keys: dict[int, list[int]] | None = None, **options) -> ConsistentHashRouter:
    content = None if keys is None else Given(keys)
    sessions = None if keys else [n // 2 for n in range(4000)]
    return ConsistentHashRouter(
        ConsistentHashParams(**options), seed=seed, content=content, block_size=16, sessions=sessions
    )


def test_turns_of_a_session_meet_and_sessions_spread() -> None:
    router = ring()
    chosen = [router.choose(request(n), idle(4), 0) for n in range(4000)]
    assert chosen[::2] == chosen[1::2]
    counts = Counter(chosen)
    assert set(counts) == {0, 1, 2, 3}
    assert max(counts.values()) < 1.5 * 1000, "100 points each: shares within about 10 % of each other"
    other = ring(seed=1)
    assert chosen != [other.choose(request(n), idle(4), 0) for n in range(4000)]


def test_one_more_replica_takes_from_all_and_moves_nothing_else() -> None:
    router = ring()
    four = [router.choose(request(n), idle(4), 0) for n in range(0, 4000, 2)]
    router = ring()
    five = [router.choose(request(n), idle(5), 0) for n in range(0, 4000, 2)]
    moved = [(old, new) for old, new in zip(four, five, strict=True) if old != new]
    assert {new for _, new in moved} == {4}
    assert {old for old, _ in moved} == {0, 1, 2, 3}
    assert len(moved) / len(four) == pytest.approx(1 / 5, abs=0.08)


def test_a_common_beginning_meets() -> None:
    keys = {0: [1, 2, 3], 1: [1, 2, 9], 2: [1], 3: [1, 2]}
    router = ring(keys=keys, hash_on="prefix", prefix_tokens=32)
    same = [router.choose(request(n, 16 * len(keys[n])), idle(50), 0) for n in keys]
    assert same[0] == same[1] == same[3]
    assert same[2] != same[0], "a shorter prompt has another beginning"


def test_a_bounded_ring_never_exceeds_the_bound() -> None:
    """All requests hash alike; with 1.25 times the mean each of 4 replicas fills up in turn."""
    router = ring(keys={n: [1] for n in range(100)}, hash_on="prefix", load_bound=1.25)
    targets = idle(4)
    for number in range(100):
        chosen = router.choose(request(number, 16), targets, 0)
        assert targets[chosen].outstanding_requests < 1.25 * (number + 1) / 4 + 1 - 1e-9
        targets[chosen].outstanding_requests += 1
    counts = sorted(target.outstanding_requests for target in targets)
    assert counts[-1] == 32, "ceil(1.25 * 100 / 4)"
    assert ring(keys={0: [1]}, hash_on="prefix").choose(request(0, 16), targets, 0) in range(4)


def test_nothing_to_hash_is_said() -> None:
    make = lambda **options: ConsistentHashRouter(ConsistentHashParams(**options), seed=0)  # noqa: E731
    assert "no sessions" in make().assumptions[0]
    assert "does not say" in make(hash_on="prefix").assumptions[0]
