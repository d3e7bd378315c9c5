"""vLLM's DP balancer: the score by hand, local counts between reports, rotating ties."""

from __future__ import annotations

from simserve.engines.vllm.router import VllmDpParams, VllmDpRouter
from tests.router.states import MS, Seen, idle, request


def make(**options) -> VllmDpRouter:
    return VllmDpRouter(VllmDpParams(**options), seed=0)


def engines(*states: tuple[int, int, float]) -> list[Seen]:
    return [
        Seen(waiting_requests=waiting, running_requests=running, kv=kv) for waiting, running, kv in states
    ]


def test_reports_come_every_100_ms_by_default() -> None:
    assert make().refresh_ns == 100 * MS


def test_queues_count_more_the_fuller_the_kv_above_a_half() -> None:
    """9 waiting at 60 %: 9 + 9 * 6 * 0.1 = 14.4; at 50 % or less just 9."""
    assert make().choose(request(), engines((9, 0, 0.6), (0, 14, 0.9)), 0) == 1, "14.4 against 14"
    assert make().choose(request(), engines((9, 0, 0.6), (0, 15, 0.9)), 0) == 0, "14.4 against 15"
    assert make().choose(request(), engines((9, 0, 0.5), (0, 10, 0.9)), 0) == 0, "9 against 10"


def test_between_reports_what_was_sent_counts() -> None:
    router = make()
    targets = engines((0, 0, 0.0), (0, 2, 0.0))
    chosen = [router.choose(request(n), targets, n * MS) for n in range(4)]
    assert chosen == [0, 0, 0, 1], "scores 0-2, 1-2, 2-2 (the third scan starts with 0 again), 3-2"


def test_ties_rotate_with_the_start_of_the_scan() -> None:
    router = make()
    chosen = []
    for number in range(6):
        chosen.append(router.choose(request(number), idle(3), number * 200 * MS))
        router.ended(request(number), number * 200 * MS + 1)
    assert chosen == [0, 1, 2, 0, 1, 2]


def test_a_new_report_replaces_local_counts_but_not_requests_in_flight() -> None:
    router = make()
    assert router.choose(request(0), idle(2), 0) == 0
    assert router.choose(request(1), idle(2), 0) == 1
    router.ended(request(1), 50 * MS)
    assert router.choose(request(2), idle(2), 150 * MS) == 1, (
        "engine 0 has one in flight, whatever it reports"
    )


def test_the_older_score_weighs_waiting_four_times() -> None:
    older = make(version="0.15")
    assert older.choose(request(0), engines((1, 0, 1.0), (0, 5, 0.0)), 0) == 0, "4 against 5"
    assert older.choose(request(1), engines((1, 0, 1.0), (0, 5, 0.0)), 1) == 1, (
        "8 against 5: one sent counts as waiting"
    )
    assert older.choose(request(2), idle(2), 100 * MS) == 0
    assert older.choose(request(3), idle(2), 200 * MS) == 0, "the scan always starts with the first engine"
