"""SGLang's gateway: thresholds, the tree of what was sent, its eviction."""

from __future__ import annotations

from simserve.router.base import Prompt
from simserve.router.cache_aware import CacheAwareParams, CacheAwareRouter, PrefixTree
from tests.router.states import Given, S, Seen, idle, request


def make(keys: dict[int, list[int]] | None, block_size: int = 10, **options) -> CacheAwareRouter:
    content = None if keys is None else Given(keys)
    return CacheAwareRouter(CacheAwareParams(**options), seed=0, content=content, block_size=block_size)


def test_a_match_of_more_than_the_threshold_is_followed() -> None:
    router = make({0: [1, 2, 3, 4], 1: [9], 2: [1, 2, 5, 6], 3: [1, 7, 8, 5]}, cache_threshold=0.3)
    assert router.choose(request(0, 40), idle(2), 0) == 0, "all trees are empty: the first"
    assert router.choose(request(1, 10), idle(2), 0) == 1, "no match: the worker that was sent fewest"
    assert router.choose(request(2, 40), idle(2), 0) == 0, "20 of 40 tokens match"
    assert router.choose(request(3, 40), idle(2), 0) == 1, "10 of 40 is not above 0.3; 1 was sent fewer"


def test_a_match_of_just_the_threshold_is_not_followed() -> None:
    router = make({0: [1, 2], 1: [1, 3]}, cache_threshold=0.5)
    assert router.choose(request(0, 20), idle(2), 0) == 0
    assert router.choose(request(1, 20), idle(2), 0) == 1


def test_out_of_balance_needs_both_thresholds() -> None:
    keys = {n: [1, 2, 3, 4] for n in range(5)}
    router = make(keys, balance_abs_threshold=10, balance_rel_threshold=1.5)
    states = lambda *counts: [Seen(outstanding_requests=count) for count in counts]  # noqa: E731
    assert router.choose(request(0, 40), idle(2), 0) == 0
    assert router.choose(request(1, 40), states(10, 0), 0) == 0, "10 is not above the absolute threshold"
    assert router.choose(request(2, 40), states(33, 22), 0) == 0, "33 is not above 1.5 times 22"
    assert router.choose(request(3, 40), states(34, 22), 0) == 1, "above both"
    assert router.choose(request(4, 40), states(0, 0), 0) == 0, "both have it: who had it first"


def test_a_prompt_sent_for_balance_is_known_there() -> None:
    router = make({0: [1, 2], 1: [1, 2, 3, 4]}, balance_abs_threshold=0, balance_rel_threshold=1.0)
    assert router.choose(request(0, 20), [Seen(outstanding_requests=1), Seen()], 0) == 1
    assert router.choose(request(1, 40), idle(2), 0) == 1


def test_a_miss_goes_to_the_least_loaded_then_to_who_had_fewest() -> None:
    router = make({n: [n + 1] for n in range(5)})
    loaded = lambda *counts: [Seen(outstanding_requests=count) for count in counts]  # noqa: E731
    assert router.choose(request(0, 10), loaded(2, 1, 1), 0) == 1, "the first of the least loaded"
    assert router.choose(request(1, 10), loaded(2, 1, 1), 0) == 2, "equal load: 1 was sent one already"
    assert router.choose(request(2, 10), loaded(0, 0, 0), 0) == 0
    assert router.choose(request(3, 10), loaded(1, 1, 0), 0) == 2, "load comes before what was sent"


def test_unknown_content_balances_prompt_tokens_in_2025_and_is_said() -> None:
    router = make(None, version="2025")
    assert [router.choose(request(n, size), idle(2), 0) for n, size in enumerate((50, 20, 20, 20))] == [
        0,
        1,
        1,
        1,
    ]
    assert "does not say" in router.assumptions[0]
    assert make({}).assumptions == ()


def test_eviction_comes_at_its_interval_and_makes_a_miss() -> None:
    keys = {0: [1, 2, 3], 1: [1, 2, 3], 2: [1, 2, 3]}
    options = {"eviction_interval_secs": 60, "max_tree_size": 40, "chars_per_token": 4.0}
    router = make(keys, **options)
    assert router.choose(request(0, 30), idle(2), 0) == 0
    assert router.choose(request(1, 30), idle(2), 59 * S) == 0, "not evicted yet"
    assert router.choose(request(2, 30), idle(2), 60 * S) == 0, "10 of 30 tokens are left, which is above 0.3"
    stricter = make(keys, cache_threshold=0.34, **options)
    assert [stricter.choose(request(n, 30), idle(2), t * S) for n, t in ((0, 0), (1, 59), (2, 60))] == [
        0,
        0,
        1,
    ]


def test_the_tree_drops_the_least_recently_used_ends_first() -> None:
    tree = PrefixTree(10)
    tree.insert(0, Prompt([1, 2], 0), 0)
    tree.insert(1, Prompt([1, 3], 5), 0)
    tree.insert(2, Prompt([1, 2], 0), 0)
    assert tree.sizes == {0: 35}
    tree.evict(20)
    assert tree.sizes == {0: 20}, "the rest of 5 and block 3 went: block 2 was used later"
    assert tree.match(Prompt([1, 2], 0)) == (20, 0)
    assert tree.match(Prompt([1, 3], 0)) == (10, 0)
    tree.evict(0)
    assert tree.sizes == {0: 0}
    assert tree.match(Prompt([1, 2], 0)) == (0, None)


def test_workers_share_blocks_but_not_sizes() -> None:
    tree = PrefixTree(10)
    tree.insert(0, Prompt([1, 2], 0), 1)
    tree.insert(1, Prompt([1, 2, 3], 0), 0)
    assert tree.sizes == {1: 20, 0: 30}
    assert tree.match(Prompt([1, 2, 9], 0)) == (20, 1)
    assert tree.match(Prompt([1, 2, 3], 0)) == (30, 0)
    tree.evict(25)
    assert tree.sizes == {1: 20, 0: 20}
