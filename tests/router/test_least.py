"""Least of something, power of two, length threshold: literal decisions and ties."""

from __future__ import annotations

import pytest

from simserve.errors import ScenarioError
from simserve.router.base import ROUTERS
from tests.router.states import Seen, idle, request


def make(name: str, **options):
    router = ROUTERS.get(name)
    return router(router.Params(**options), seed=1)


@pytest.mark.parametrize(
    ("name", "states"),
    [
        ("least_outstanding_requests", [{"outstanding_requests": n} for n in (3, 1, 2)]),
        ("least_outstanding_tokens", [{"tokens": n} for n in (30, 10, 20)]),
        ("shortest_queue", [{"waiting_requests": n, "outstanding_requests": 9 - n} for n in (3, 1, 2)]),
        ("least_kv", [{"kv": n} for n in (0.3, 0.1, 0.2)]),
    ],
)
def test_the_smallest_is_chosen_whatever_the_others_say(name: str, states: list[dict]) -> None:
    router = make(name)
    assert [router.choose(request(n), [Seen(**state) for state in states], 0) for n in range(3)] == [1, 1, 1]


@pytest.mark.parametrize(
    "name", ["least_outstanding_requests", "least_outstanding_tokens", "shortest_queue", "least_kv"]
)
def test_an_idle_fleet_is_filled_in_turn(name: str) -> None:
    router = make(name)
    assert [router.choose(request(n), idle(3), 0) for n in range(5)] == [0, 1, 2, 0, 1]


def test_ties_go_on_after_the_last_choice() -> None:
    router = make("least_outstanding_requests")
    targets = [Seen(outstanding_requests=n) for n in (1, 0, 5, 0)]
    assert [router.choose(request(n), targets, 0) for n in range(4)] == [1, 3, 1, 3]


def test_power_of_two_never_takes_the_fullest_of_three() -> None:
    router = make("power_of_two")
    targets = [Seen(outstanding_requests=n) for n in (1, 9, 1)]
    chosen = {router.choose(request(n), targets, 0) for n in range(100)}
    assert chosen == {0, 2}


def test_long_prompts_have_their_own_replicas() -> None:
    router = make("length_threshold", threshold_tokens=1000, long_replicas=2)
    targets = [Seen(outstanding_requests=n) for n in (7, 6, 2, 1)]
    assert router.choose(request(0, prompt=999), targets, 0) == 1
    assert router.choose(request(1, prompt=1000), targets, 0) == 3


def test_somebody_must_take_short_prompts() -> None:
    with pytest.raises(ScenarioError, match=r"long_replicas = 2 of 2 replicas, allowed: 1 to 1"):
        make("length_threshold", long_replicas=2).choose(request(), idle(2), 0)
