"""Tiers below HBM by themselves: what they hold, what moves, what is worth loading. All figures by hand."""

from __future__ import annotations

import pytest

from simserve.kvcache.tiers import Store, TierCache, TierSpec

BLOCK = 4


LONG_AGO = -1_000_000
"""What is dropped then is written by 0."""


def cache(
    *capacities: int,
    block_ns: int = 10,
    write_ns: int = 1,
    latency_ns: int = 5,
    token_ns: int = 100,
    **options,
) -> TierCache:
    """Tiers of these capacities whose links move a block in `block_ns`; a prompt token takes `token_ns`."""
    read, write = 1_000_000_000 // block_ns, 1_000_000_000 // write_ns
    stores = [Store(TierSpec("cpu", blocks, 1, read, write, latency_ns)) for blocks in capacities]
    made = TierCache(
        stores, block_size=BLOCK, recompute_ns=lambda tokens, cached: token_ns * tokens, **options
    )
    made.stores = stores  # type: ignore[attr-defined]
    made.at(LONG_AGO)
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
    assert held(tiers) == [[]]  # they are full when the step is over
    tiers.at(LONG_AGO)
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
    tiers.at(LONG_AGO)
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


# -- writes ------------------------------------------------------------------------------------------------


def found(tiers: TierCache, keys: list[int], now_ns: int) -> int:
    """How many of these blocks can be read now."""
    return len(tiers.plan(keys, known=len(keys) * BLOCK + 1, hits=0, now_ns=now_ns).keys)


def test_a_block_is_found_once_it_is_written() -> None:
    """Three blocks of 10 ns are written one after the other from 100 on, each 5 ns late: 115, 125, 135."""
    tiers = cache(9, write_ns=10)
    tiers.at(100)
    tiers.dropped([1, 2, 3])
    assert [found(tiers, [1, 2, 3], now_ns) for now_ns in (114, 115, 124, 125, 134, 135)] == [
        0,
        1,
        1,
        2,
        2,
        3,
    ]
    assert tiers.results()[0].write_link_ns == 30


def test_writes_share_a_link_first_come_first_served() -> None:
    """Blocks dropped at 100 and 105 leave the link at 110 and 120; one dropped at 500 at 510."""
    tiers = cache(9, write_ns=10, latency_ns=0)
    for now_ns, key in ((100, 1), (105, 2), (500, 3)):
        tiers.at(now_ns)
        tiers.dropped([key])
    ready = {key: next(t for t in range(600) if found(tiers, [key], t)) for key in (1, 2, 3)}
    assert ready == {1: 110, 2: 120, 3: 510}


def test_written_through_begins_when_the_step_is_over() -> None:
    tiers = cache(9, write_ns=10, latency_ns=0, write_through=True)
    tiers.at(0)
    tiers.filled([1])
    assert not found(tiers, [1], 10**9)
    tiers.at(1000)
    assert [found(tiers, [1], now_ns) for now_ns in (1009, 1010)] == [0, 1]


def test_what_is_not_written_yet_cannot_be_written_further() -> None:
    """The first of two blocks goes on to the second tier, which has it 10 ns after the first tier had."""
    tiers = cache(1, 9, write_ns=10, latency_ns=0)
    tiers.at(0)
    tiers.dropped([1, 2])  # 1 is written by 10, 2 by 20; 1 then leaves and is written again by 20
    assert [found(tiers, [1], now_ns) for now_ns in (19, 20)] == [0, 1]


def test_a_promoted_copy_is_there_when_the_load_is_over() -> None:
    """Loaded from the second tier by 15; the first tier has it from then on, and is the one that reads it."""
    tiers = cache(3, 9, latency_ns=5)
    tiers.dropped([1, 2, 3, 4])  # 1 is below
    tiers.load(tiers.plan([1], known=9, hits=0, now_ns=0), 0)
    assert list(tiers.plan([1], known=9, hits=0, now_ns=14).places) == [1]
    assert list(tiers.plan([1], known=9, hits=0, now_ns=15).places) == [0]
