"""Dynamo's KV router: its cost by hand, the softmax against its formula, assumed hits."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from simserve.router.base import Prompt
from simserve.router.dynamo import DynamoKvRouter, DynamoParams
from simserve.router.dynamo_state import Active, AssumedCache, Sent
from tests.router.states import Given, S, Seen, idle, request


def make(keys: dict[int, list[int]] | None = None, seed: int = 0, **options) -> DynamoKvRouter:
    content = None if keys is None else Given(keys)
    return DynamoKvRouter(DynamoParams(**options), seed=seed, content=content, block_size=16)


def test_the_longest_cached_prefix_wins_when_idle() -> None:
    assert make().choose(request(0, 64), [Seen(cached=16), Seen(cached=48), Seen(cached=32)], 0) == 1


@pytest.mark.parametrize(
    ("stage", "cached_blocks", "chosen"),
    [("sent", 6, 1), ("sent", 8, 0), ("computed", 3, 1), ("computed", 5, 0), ("ended", 1, 0)],
)
def test_cost_is_prompt_blocks_to_compute_plus_blocks_held(
    stage: str, cached_blocks: int, chosen: int
) -> None:
    """Worker 0 got 64 tokens, 16 of them cached: it holds 4 blocks and has 3 to compute.

    A prompt of 10 blocks then costs 3 + 10 - cached + 4 + 10 there against 10 + 10 at an idle worker; without
    the 3 once computed, without the 4 once ended.
    """
    router = make()
    first, second = request(0, 64), request(1, 160)
    targets = [Seen(cached_by_request={0: 16, 1: cached_blocks * 16}), Seen()]
    assert router.choose(first, targets, 0) == 0
    if stage != "sent":
        router.first_token(first, S)
    if stage == "ended":
        router.ended(first, 2 * S)
    assert router.choose(second, targets, 3 * S) == chosen


def test_options_weigh_the_parts() -> None:
    """Worker 0 has 6 of 10 blocks cached and 10 blocks held by others; worker 1 has nothing."""

    def chosen(**options) -> int:
        router = make(**options)
        targets = [Seen(cached_by_request={0: 144, 1: 96}), Seen()]
        assert router.choose(request(0, 160), targets, 0) == 0 or options["overlap_score_credit"] == 0
        router.first_token(request(0, 160), 0)
        return router.choose(request(1, 160), targets, 0)

    assert chosen() == 1, "10 - 6 + 20 against 10 + 10"
    assert chosen(prefill_load_scale=2.0) == 0, "2 * 4 + 20 against 2 * 10 + 10"
    assert chosen(router_track_active_blocks=False) == 0, "4 against 10"
    assert chosen(prefill_load_scale=2.0, overlap_score_credit=0.5) == 1, "2 * 7 + 20 against 2 * 10 + 10"


def test_a_block_that_requests_share_is_held_once() -> None:
    active = Active(block_size=16, key_tokens=32)
    first, second = Sent(0, Prompt([1, 2], 5), 69), Sent(0, Prompt([1, 2, 3], 17), 113)
    active.add(first)
    assert active.blocks_with(second.prompt) == (2 * 2 + 1) + (2 + 2)
    active.add(second)
    assert active.blocks_with(Prompt([], 0)) == 9
    assert active.prefill_tokens == 69 + 113
    active.remove(first)
    assert active.blocks_with(Prompt([], 0)) == 3 * 2 + 2
    active.computed(second)
    active.remove(second)
    assert (active.blocks_with(Prompt([], 0)), active.prefill_tokens) == (0, 0)


def test_sent_blocks_are_assumed_cached_until_the_time_is_over() -> None:
    cache = AssumedCache(ttl_ns=120 * S)
    cache.store(Prompt([1, 2, 3], 0), 0)
    cache.store(Prompt([1, 2], 0), 100 * S)
    overlaps = [cache.overlap(Prompt([1, 2, 3, 4], 0), time_s * S) for time_s in (119, 120, 219, 220)]
    assert overlaps == [3, 2, 2, 0]


def test_without_events_requests_follow_what_was_sent() -> None:
    """Each prompt ends before the next comes, so only assumed hits tell the workers apart."""
    router = make({n: [1, 2, 3, 4] for n in range(3)}, use_kv_events=False, router_ttl_secs=120.0)
    targets = [Seen(), Seen(), Seen(cached=64)]
    chosen = []
    for number, time_s in enumerate((0, 119, 238)):
        chosen.append(router.choose(request(number, 64), targets, time_s * S))
        router.ended(request(number, 64), time_s * S)
    assert chosen[0] == chosen[1] == chosen[2]


def test_ties_are_drawn_and_the_seed_repeats_them() -> None:
    draws = [make(seed=seed).choose(request(0, 64), idle(4), 0) for seed in range(40)]
    assert draws == [make(seed=seed).choose(request(0, 64), idle(4), 0) for seed in range(40)]
    assert set(draws) == {0, 1, 2, 3}


def test_the_temperature_spreads_choices_as_the_softmax_says() -> None:
    """Costs 4 + 4, 2 + 4 and 0 + 4 blocks: weights exp(-1 / T), exp(-0.5 / T) and 1."""
    temperature, draws = 0.7, 6000
    counts: Counter[int] = Counter()
    router = make(router_temperature=temperature, seed=11)
    targets = [Seen(cached=0), Seen(cached=32), Seen(cached=64)]
    for number in range(draws):
        counts[router.choose(request(number, 64), targets, 0)] += 1
        router.ended(request(number, 64), 0)
    weights = [math.exp(-1 / temperature), math.exp(-0.5 / temperature), 1.0]
    for worker, weight in enumerate(weights):
        share = weight / sum(weights)
        deviation = math.sqrt(share * (1 - share) / draws)
        assert counts[worker] / draws == pytest.approx(share, abs=4 * deviation)


def test_unknown_content_is_said() -> None:
    assert "does not say" in make().assumptions[0]
    assert make({}).assumptions == ()


def busy(*cached: int, budget: int = 100, **fields) -> list[Seen]:
    return [Seen(cached=tokens, max_num_batched_tokens=budget, **fields) for tokens in cached]


@pytest.mark.parametrize(
    ("below", "chosen"),
    [
        ({"cpu": 96}, 0),  # 10 - 0.75 * 6 = 5.5 against 10 - 4 = 6
        ({"ssd": 96}, 1),  # 10 - 0.25 * 6 = 8.5
        ({"remote": 160}, 1),  # 10: a shared store counts nothing by default
        ({"cpu": 64, "ssd": 96}, 0),  # 10 - 0.75 * 4 - 0.25 * 6 = 5.5
    ],
)
def test_tiers_below_hbm_are_credited_in_part(below: dict[str, int], chosen: int) -> None:
    assert make().choose(request(0, 160), [Seen(below=below), Seen(cached=64)], 0) == chosen


def test_credit_falls_with_the_prompts_in_flight() -> None:
    """Worker 0 has 9 blocks to compute, worker 1 none; of the next prompt worker 0 has all 10 blocks.

    It costs 9 + 10 - 10 = 9 there against 10. With decay 1 the credit is 10 / (1 + 9 / 10): 13.7 against 10.
    """

    def chosen(**options) -> int:
        router = make(**options)
        assert router.choose(request(0, 160), [Seen(cached=16), Seen()], 0) == 0
        return router.choose(request(1, 160), [Seen(cached=160), Seen()], 0)

    assert chosen(router_track_active_blocks=False) == 0
    assert chosen(router_track_active_blocks=False, overlap_score_credit_decay=1.0) == 1


def test_requests_in_flight_can_cost() -> None:
    """Worker 0 holds one request whose prompt is computed: 1 block and, if weighed, 20 more."""

    def chosen(weight: float) -> int:
        router = make(decode_active_request_weight=weight)
        assert router.choose(request(0, 16), [Seen(cached=16), Seen()], 0) == 0
        router.first_token(request(0, 16), 0)
        return router.choose(request(1, 160), [Seen(cached=64), Seen()], 0)

    assert chosen(0.0) == 0, "10 - 4 + 1 + 10 against 10 + 10"
    assert chosen(4.0) == 1, "4 more"


@pytest.mark.parametrize(("version", "threshold"), [("1.4", None), ("1.3", 16.0), ("1.0", 4.0)])
def test_the_queue_threshold_of_each_release(version: str, threshold: float | None) -> None:
    params = DynamoParams.model_validate({"version": version}, strict=True)
    assert params.queue_threshold == threshold
    explicit = DynamoParams.model_validate({"version": version, "router_queue_threshold": None}, strict=True)
    assert explicit.queue_threshold is None
    assert DynamoKvRouter(params, seed=0).may_hold is (threshold is not None)


def test_requests_wait_while_every_worker_is_over_its_threshold() -> None:
    """Budgets of 100 and a threshold of 2: a worker is busy with more than 200 prompt tokens in flight."""
    router = make(router_queue_threshold=2.0)
    targets = busy(0, 0)
    assert {router.choose(request(n, 200), targets, 0) for n in (0, 1)} == {0, 1}
    over = router.choose(request(2, 1), targets, 0)
    assert over is not None, "200 is not more than 200"
    assert router.choose(request(3, 1), targets, 0) == 1 - over, "the other is not busy"
    assert router.choose(request(4, 50), targets, 0) is None, "201 and 201"
    assert router.release(targets, 0) is None
    router.first_token(request(2, 1), S)
    released = router.release(targets, S)
    assert released is not None
    assert (released[0].id, released[1]) == (4, over), "200 again: it goes to the worker that has room"


def held(policy: str, requests: list, targets: list[Seen], cached: dict[int, int] | None = None) -> list[int]:
    """Send a long prompt, hold the requests behind it, and return the order in which they go on."""
    router = make(router_queue_threshold=0.0, router_queue_policy=policy)
    blocker = request(99, 500)
    assert router.choose(blocker, targets, 0) == 0
    for number, one in enumerate(requests):
        targets[0].cached_by_request = {} if cached is None else {one.id: cached.get(one.id, 0)}
        assert router.choose(one, targets, (number + 1) * S) is None
    router.first_token(blocker, 10 * S)
    order = []
    while (released := router.release(targets, 10 * S)) is not None:
        order.append(released[0].id)
        router.first_token(released[0], 10 * S)
    return order


def test_the_queue_policies_order_as_they_say() -> None:
    """Arrivals at 1, 2 and 3 s; a unit of priority is a second for fcfs and lcfs, a weight for wspt."""
    lengths = [request(0, 300), request(1, 100), request(2, 200)]
    assert held("fcfs", lengths, busy(0)) == [0, 1, 2]
    assert held("lcfs", lengths, busy(0)) == [2, 1, 0]
    assert held("wspt", lengths, busy(0)) == [1, 2, 0]
    urgent = [request(0, 300), request(1, 100), request(2, 200, priority=5)]
    assert held("fcfs", urgent, busy(0)) == [2, 0, 1]
    assert held("wspt", urgent, busy(0)) == [2, 1, 0], "6 / 200, 1 / 100, 1 / 300"
    assert held("wspt", lengths, busy(0), cached={0: 288}) == [0, 1, 2], "12, 100 and 200 tokens are new"


def test_a_withdrawn_request_is_forgotten() -> None:
    router, targets = make(router_queue_threshold=0.0), busy(0)
    assert router.choose(request(0, 100), targets, 0) == 0
    assert [router.choose(request(n, 100), targets, 0) for n in (1, 2)] == [None, None]
    router.withdraw(request(1, 100))
    router.ended(request(0, 100), S)
    released = router.release(targets, S)
    assert released is not None
    assert (released[0].id, released[1]) == (2, 0)
    assert router.release(targets, S) is None


def test_an_engine_without_a_token_budget_is_never_busy() -> None:
    router = make(router_queue_threshold=0.0)
    assert [router.choose(request(n, 10_000), idle(2), 0) is None for n in range(4)] == [False] * 4
