"""Routers that turn or draw: each choice by hand, or by the statistics of the draw."""

from __future__ import annotations

from collections import Counter

import pytest
from scipy import stats

from simserve.router.base import ROUTERS, Router
from tests.router.states import Seen, idle, request


def router(kind: str, seed: int = 0) -> Router:
    cls = ROUTERS.get(kind)
    return cls(cls.Params(), seed=seed)


def choices(kind: str, targets: list[Seen], count: int, seed: int = 0) -> list[int]:
    made = router(kind, seed)
    return [made.choose(request(number), targets, 0) for number in range(count)]


def test_round_robin_takes_turns_whatever_the_load() -> None:
    busy = [Seen(outstanding_requests=9), Seen(), Seen()]
    assert choices("round_robin", busy, 7) == [0, 1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize("kind", ["random", "power_of_two"])
def test_a_seed_fixes_the_draws(kind: str) -> None:
    assert choices(kind, idle(5), 50, seed=3) == choices(kind, idle(5), 50, seed=3)
    assert choices(kind, idle(5), 50, seed=3) != choices(kind, idle(5), 50, seed=4)


@pytest.mark.parametrize("kind", ["random", "power_of_two"])
def test_equal_replicas_get_equal_shares(kind: str) -> None:
    """A chi-square test on 4,000 draws over 4 replicas."""
    counts = Counter(choices(kind, idle(4), 4000, seed=1))
    assert stats.chisquare([counts[index] for index in range(4)]).pvalue > 0.01


def test_power_of_two_takes_the_better_of_two_distinct_ones() -> None:
    """Loads 0 < 1 < 2 < 3: of the 6 pairs, 3 contain replica 0, 2 more replica 1, and 1 is left for 2."""
    loaded = [Seen(outstanding_requests=load) for load in range(4)]
    counts = Counter(choices("power_of_two", loaded, 6000, seed=2))
    assert counts[3] == 0
    assert stats.chisquare([counts[index] for index in range(3)], [3000, 2000, 1000]).pvalue > 0.01


def test_power_of_two_of_two_is_the_less_loaded() -> None:
    assert set(choices("power_of_two", [Seen(outstanding_requests=1), Seen()], 50)) == {1}


@pytest.mark.parametrize("kind", ["round_robin", "random", "power_of_two"])
def test_a_single_replica_is_always_chosen(kind: str) -> None:
    assert choices(kind, idle(1), 5) == [0] * 5
