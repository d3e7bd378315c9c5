"""Tiers below HBM by themselves: what they hold, what moves, what is worth loading. All figures by hand."""

from __future__ import annotations

import pytest

from simserve.kv.tiers import Store, TierCache, TierSpec

BLOCK = 4


def cache(
    *capacities: int, block_ns: int = 10, latency_ns: int = 5, token_ns: int = 100, **options
) -> TierCache:
    """Tiers of these capacities whose links move a block in `block_ns`; a prompt token takes `token_ns`."""
    speed = 1_000_000_000 // block_ns
    stores = [Store(TierSpec("cpu", blocks, 1, speed, speed, latency_ns)) for blocks in capacities]
    made = TierCache(
        stores, block_size=BLOCK, recompute_ns=lambda tokens, cached: token_ns * tokens, **options
    )
    made.stores = stores  # type: ignore[attr-defined]
    return made


def held(tiers: TierCache) -> list[list[int]]:
    return [list(store.held) for store in tiers.stores]  # type: ignore[attr-defined]


def test_what_a_tier_drops_goes_to_the_next_and_then_away() -> None:
    tiers = cache(2, 2)
    tiers.dropped([1, 2, 3])
    assert held(tiers) == [[2, 3], [1]]
    tiers.dropped([4, 5])
    assert held(tiers) == [[4, 5], [2, 3]]
    first, second = tiers.results()
    assert (first.written_bytes, first.evicted_blocks, first.used_blocks) == (5, 3, 2)
    assert (second.written_bytes, second.evicted_blocks, second.used_blocks) == (3, 1, 2)


def test_a_block_that_is_there_is_not_written_again() -> None:
    tiers = cache(3)
    tiers.dropped([1, 2, 3])
    tiers.dropped([1])
    assert held(tiers) == [[2, 3, 1]]
    assert tiers.results()[0].written_bytes == 3


@pytest.mark.parametrize(
    ("inclusive", "expected"),
    [(True, [[1, 3], [1, 2]]), (False, [[2, 3], []])],
)
def test_a_loaded_block_stays_or_moves(inclusive: bool, expected: list[list[int]]) -> None:
    tiers = cache(2, 2, inclusive=inclusive)
    tiers.dropped([1, 2, 3])  # [2, 3] above [1]
    plan = tiers.plan([1], known=9, hits=0, now_ns=0)
    tiers.load(plan, 0)
    found = [sorted(blocks) for blocks in held(tiers)]
    assert found == expected
    upper, lower = tiers.results()
    assert upper.promoted_blocks == (1 if inclusive else 0)
    assert lower.moved_up_blocks == (0 if inclusive else 1)
    assert lower.hit_tokens == BLOCK


def test_exclusive_tiers_hold_a_block_once() -> None:
    tiers = cache(1, 2, inclusive=False)
    tiers.dropped([1, 2])
    assert held(tiers) == [[2], [1]]
    tiers.dropped([1])  # was computed again in HBM
    assert held(tiers) == [[1], [2]]


def test_written_through_when_full_and_not_when_dropped() -> None:
    tiers = cache(4, write_through=True)
    tiers.filled([1, 2])
    tiers.dropped([7])
    assert held(tiers) == [[2, 1]]  # the beginning of a chain is dropped last
    tiers.used([2])
    assert held(tiers) == [[1, 2]]


def test_a_chain_goes_on_through_the_tiers_and_stops_at_a_gap() -> None:
    tiers = cache(2, 2)
    tiers.dropped([1, 2, 3, 5])  # [3, 5] above [1, 2]
    plan = tiers.plan([1, 2, 3, 4, 5], known=100, hits=0, now_ns=0)
    assert (list(plan.keys), list(plan.places), plan.blocks) == ([1, 2, 3], [1, 1, 0], 3)


@pytest.mark.parametrize(("token_ns", "loads"), [(26, True), (25, False)])
def test_loads_if_faster_than_computing(token_ns: int, loads: bool) -> None:
    """Two blocks of 100 ns take 205 ns and save 8 tokens: 208 or 200 ns."""
    tiers = cache(4, block_ns=100, token_ns=token_ns)
    tiers.dropped([1, 2])
    plan = tiers.plan([1, 2], known=20, hits=0, now_ns=0)
    assert (plan.blocks == 2) is loads


def test_loads_only_what_pays_off() -> None:
    """The fast tier's block is worth 400 ns and takes 15; the slow one's takes more than it saves."""
    speed = 1_000_000_000
    stores = [
        Store(TierSpec("cpu", 1, 1, speed // 10, speed // 10, 5)),
        Store(TierSpec("ssd", 9, 1, speed // 500, speed // 500, 5)),
    ]
    tiers = TierCache(stores, block_size=BLOCK, recompute_ns=lambda tokens, cached: 100 * tokens)
    tiers.dropped([2, 1])  # 1 above, 2 below
    plan = tiers.plan([1, 2], known=20, hits=0, now_ns=0)
    assert (list(plan.places), plan.blocks) == ([0, 1], 1)
    tiers.load(plan, 0)
    assert tiers.results()[1].refused_tokens == BLOCK


def test_loads_share_a_link_first_come_first_served() -> None:
    """Two loads of three blocks of 10 ns, asked for at 0 and 1: over at 35 and 65; the next waits to 70."""
    tiers = cache(9)
    tiers.dropped([1, 2, 3, 4, 5, 6])
    assert tiers.load(tiers.plan([1, 2, 3], 13, 0, 0), 0) == 35
    assert tiers.load(tiers.plan([4, 5, 6], 13, 0, 1), 1) == 65
    assert tiers.load(tiers.plan([1], 13, 0, 2), 2) == 75
    assert tiers.load(tiers.plan([1], 13, 0, 500), 500) == 515
    assert tiers.results()[0].read_link_ns == 80


def test_a_busy_link_makes_computing_faster() -> None:
    """A block saves 40 ns and takes 15, or 45 behind three others."""
    tiers = cache(9, token_ns=10)
    tiers.dropped([1, 2, 3, 4])
    assert tiers.plan([4], known=9, hits=0, now_ns=0).blocks == 1
    tiers.load(tiers.plan([1, 2, 3], 13, 0, 0), 0)
    assert tiers.plan([4], known=9, hits=0, now_ns=0).blocks == 0
    assert tiers.plan([4], known=9, hits=0, now_ns=6).blocks == 1


def test_short_hits_are_left_alone() -> None:
    tiers = cache(9, min_hit_tokens=9)
    tiers.dropped([1, 2, 3])
    assert tiers.plan([1, 2], known=50, hits=0, now_ns=0).blocks == 0
    assert tiers.plan([1, 2, 3], known=50, hits=0, now_ns=0).blocks == 3


def test_a_tier_without_room_is_no_tier() -> None:
    assert cache(0).results() == ()
    tiers = cache(0, 2)
    tiers.dropped([1, 2, 3])
    assert held(tiers) == [[], [2, 3]]
