"""Laws of KV tiers, over random tiers, schedulers and prompts; and small worlds computed by hand."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.core import Result, Trace
from simserve.workload.cache_curve import cache_curve
from tests.laws.checkers import LawBroken, all_laws, pools_are_empty, results_agree
from tests.laws.settings import few
from tests.laws.tiers_world import BLOCK_SIZE, TieredWorld, prompts, shared_prompts, tier, tiered_worlds
from tests.laws.world import MAX_MODEL_LEN

WHOLE_PROMPTS = {"max_num_batched_tokens": 64}


def blocks_are_conserved(result: Result, world: TieredWorld) -> None:
    """What is in a store is what came minus what left; bytes are whole blocks; no store is overfull."""
    came: defaultdict[Hashable, int] = defaultdict(int)
    used: dict[Hashable, int] = {}
    for replica in result.replicas:
        for level, one in enumerate(replica.kv_tiers):
            store = level if one.shared_by != "replica" else (replica.name, level)
            written, rest = divmod(one.written_bytes, one.block_bytes)
            read, more = divmod(one.read_bytes, one.block_bytes)
            if rest or more or one.hit_tokens != read * BLOCK_SIZE:
                raise LawBroken(f"parts of blocks moved: {one}")
            came[store] += written + one.promoted_blocks - one.evicted_blocks - one.moved_up_blocks
            used[store] = one.used_blocks
            if one.used_blocks > one.capacity_blocks:
                raise LawBroken(f"more blocks than fit: {one}")
            if world.inclusive and one.moved_up_blocks:
                raise LawBroken(f"an inclusive tier gave blocks up: {one}")
    if came != used:
        raise LawBroken(f"blocks that came less those that left: {dict(came)}; there are {used}")


def hit_tokens(result: Result) -> int:
    """Tokens loaded from all tiers of all replicas."""
    return sum(one.hit_tokens for replica in result.replicas for one in replica.kv_tiers)


@few
@given(world=tiered_worlds(), trace=shared_prompts())
def test_all_laws_hold_and_fast_forward_is_stepping(world: TieredWorld, trace: Trace) -> None:
    result, policies = world.run(trace)
    all_laws(result, trace, MAX_MODEL_LEN)
    pools_are_empty(policies)
    blocks_are_conserved(result, world)
    stepped, watched = world.run(trace, fast_forward=False)
    pools_are_empty(watched)
    results_agree(result, stepped)


@few
@given(
    world=tiered_worlds(),
    trace=shared_prompts(),
    give_up_ns=st.sampled_from([2000, 7000, 30_000]),
)
def test_clients_that_give_up_leave_nothing_behind(world: TieredWorld, trace: Trace, give_up_ns: int) -> None:
    result, policies = world.run(trace, give_up_ns=give_up_ns)
    pools_are_empty(policies)
    stepped, watched = world.run(trace, give_up_ns=give_up_ns, fast_forward=False)
    pools_are_empty(watched)
    results_agree(result, stepped)


@few
@given(world=tiered_worlds(), trace=shared_prompts(most=15))
def test_tiers_without_room_change_nothing(world: TieredWorld, trace: Trace) -> None:
    assert world.tiers is not None
    empty = tuple(replace(spec, capacity_blocks=0) for spec in world.tiers)
    without, _ = world.but(tiers=None).run(trace)
    results_agree(without, world.but(tiers=empty).run(trace)[0], whole=True)


@few
@given(trace=shared_prompts())
def test_hits_never_exceed_those_of_a_cache_without_limit(trace: Trace) -> None:
    result, _ = TieredWorld(tiers=(tier(1000, block_ns=1, latency_ns=0),)).run(trace)
    (most,) = cache_curve(trace, [None], BLOCK_SIZE).points
    assert result.cached_tokens.sum() <= most.hit_tokens


@few
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 7)), min_size=1, max_size=30), st.booleans())
def test_room_for_everything_finds_everything(asked: list[tuple[int, int]], inclusive: bool) -> None:
    """One request after the other; a prompt of n ids of 8 tokens, less one token, has 2n - 1 full blocks."""
    apart_ns = 100_000
    rows = [
        (apart_ns * i, [family * 10 + j for j in range(length)], 3)
        for i, (family, length) in enumerate(asked)
    ]
    longest: defaultdict[int, int] = defaultdict(int)
    expected = []
    for family, length in asked:
        expected.append(max(0, BLOCK_SIZE * (2 * min(length, longest[family]) - 1)))
        longest[family] = max(longest[family], length)
    fast = tier(1000, block_ns=1, latency_ns=0)
    world = TieredWorld(tiers=(fast,), inclusive=inclusive, latency=(1000, 50, 1, 0))
    found = world.run(prompts(rows))[0].cached_tokens
    assert found.tolist() == expected
    for blocks in (0, 5, 20):
        less = world.but(tiers=(replace(fast, capacity_blocks=blocks),))
        assert less.run(prompts(rows))[0].cached_tokens.sum() <= found.sum()


FIRST, OTHER = list(range(7)), list(range(10, 17))
RETURN_NS = 40_000
THERE_AND_BACK = prompts([(0, FIRST, 1), (20_000, OTHER, 1), (RETURN_NS, FIRST, 1)])
"""55 tokens in 14 blocks of a pool of 15; the second prompt drops all but the first block of the first."""


@pytest.mark.parametrize(
    ("block_ns", "ttft_ns", "cached", "refused"),
    [
        (10, 7 + 12 * 10 + 1000 + 10 * 3, 52, 0),  # twelve blocks are loaded, three tokens computed
        (32, 7 + 12 * 32 + 1000 + 10 * 3, 52, 0),  # 391 ns: less than the 480 for 48 tokens
        (40, 1000 + 10 * 51, 4, 48),  # 487 ns: more
        (10_000, 1000 + 10 * 51, 4, 48),
    ],
)
def test_a_load_saves_prompt_time_or_is_refused(
    block_ns: int, ttft_ns: int, cached: int, refused: int
) -> None:
    world = TieredWorld(tiers=(tier(50, block_ns=block_ns),), latency=(1000, 10, 0, 0), params=WHOLE_PROMPTS)
    result, _ = world.run(THERE_AND_BACK)
    assert result.first_token_ns[2] - RETURN_NS == ttft_ns
    assert result.cached_tokens.tolist() == [0, 0, cached]
    (found,) = result.replicas[0].kv_tiers
    assert (found.hit_tokens, found.refused_tokens) == (cached - 4, refused)


@pytest.mark.parametrize(("write_ns", "cached"), [(1, 52), (1660, 52), (1670, 4), (10_000, 4)])
def test_a_slow_write_is_a_miss(write_ns: int, cached: int) -> None:
    """The second prompt drops 12 blocks at 20,000, ends of the chain first, so the one needed next is last.

    It is there after 12 writes and 7 ns: in time for the return at 40,000 if a write takes up to 1,666 ns.
    """
    slow = tier(50, write_ns=write_ns)
    world = TieredWorld(tiers=(slow,), latency=(1000, 10, 0, 0), params=WHOLE_PROMPTS)
    assert world.run(THERE_AND_BACK)[0].cached_tokens.tolist() == [0, 0, cached]


SGLANG = TieredWorld(
    policy="sglang",
    params={"chunked_prefill_size": -1, "disable_overlap_schedule": True},
    latency=(1000, 10, 0, 0),
)
"""19 pages; the tree drops whole leaves, so the second prompt drops all 13 pages of the first."""


@pytest.mark.parametrize(
    ("block_ns", "ttft_ns", "cached", "refused"),
    [
        (10, 7 + 13 * 10 + 1000 + 10 * 3, 52, 0),  # thirteen pages are loaded, three tokens computed
        (32, 7 + 13 * 32 + 1000 + 10 * 3, 52, 0),  # 423 ns: less than the 520 for 52 tokens
        (40, 1000 + 10 * 55, 0, 52),  # 527 ns: more
    ],
)
def test_sglang_loads_before_it_admits(block_ns: int, ttft_ns: int, cached: int, refused: int) -> None:
    result, _ = SGLANG.but(tiers=(tier(50, block_ns=block_ns),)).run(THERE_AND_BACK)
    assert result.first_token_ns[2] - RETURN_NS == ttft_ns
    assert result.cached_tokens.tolist() == [0, 0, cached]
    (found,) = result.replicas[0].kv_tiers
    assert (found.hit_tokens, found.refused_tokens) == (cached, refused)


@pytest.mark.parametrize(("write_through", "pages"), [(False, 13), (True, 2 * 13)])
def test_sglang_writes_what_it_drops_or_what_it_fills(write_through: bool, pages: int) -> None:
    """Back: the 13 pages of the first prompt. Through: those of both, as each is computed."""
    world = SGLANG.but(tiers=(tier(50),), write_through=write_through)
    result, _ = world.run(prompts([(0, FIRST, 1), (20_000, OTHER, 1)]))
    assert result.replicas[0].kv_tiers[0].used_blocks == pages


def test_sglang_leaves_a_loading_request_in_the_queue() -> None:
    """A short prompt behind a load of 137 ns runs at once, and the loaded one after that step."""
    before = [(0, FIRST, 1), (20_000, OTHER, 1), (30_000, list(range(20, 27)), 1)]
    rows = [*before, (RETURN_NS, FIRST, 1), (RETURN_NS, [50], 1)]
    result, _ = SGLANG.but(tiers=(tier(50),), kv_blocks=30).run(prompts(rows))
    assert result.cached_tokens.tolist() == [0, 0, 0, 52, 0]
    assert result.first_scheduled_ns[3:].tolist() == [RETURN_NS + 1000 + 10 * 7, RETURN_NS]


def test_others_are_admitted_while_one_loads() -> None:
    """A short prompt behind a load of 127 ns runs at once, and the loaded one after that step."""
    rows = [(0, FIRST, 1), (20_000, OTHER, 1), (RETURN_NS, FIRST, 1), (RETURN_NS, [50], 1)]
    world = TieredWorld(tiers=(tier(50),), latency=(1000, 10, 0, 0), params=WHOLE_PROMPTS, kv_blocks=20)
    waiting = prompts([*rows[:2], (30_000, list(range(20, 27)), 1), *rows[2:]])
    result, _ = world.run(waiting)
    assert result.first_scheduled_ns[3:].tolist() == [RETURN_NS + 1000 + 10 * 7, RETURN_NS]


def test_who_wants_the_same_blocks_waits_for_them() -> None:
    """Two equal prompts return together: one load, after which both start in one step."""
    world = TieredWorld(tiers=(tier(50),), latency=(1000, 10, 0, 0), params=WHOLE_PROMPTS, kv_blocks=16)
    rows = [(0, FIRST, 1), (20_000, OTHER, 1), (RETURN_NS, FIRST, 1), (RETURN_NS, FIRST, 1)]
    result, _ = world.run(prompts(rows))
    (found,) = result.replicas[0].kv_tiers
    assert result.cached_tokens[2] == result.cached_tokens[3] == 52
    assert found.hit_tokens == 52 - 2 * BLOCK_SIZE  # two blocks were left in HBM
    assert result.first_scheduled_ns[2] == result.first_scheduled_ns[3]


def test_a_shared_store_serves_what_another_replica_computed() -> None:
    """Round robin sends the return of the first prompt to the replica that never saw it."""
    rows = [(0, FIRST, 1), (20_000, OTHER, 1), (40_000, OTHER, 1), (60_000, FIRST, 1)]

    def cached(shared_by: str) -> list[int]:
        shared = tier(50, shared_by=shared_by)
        world = TieredWorld(
            tiers=(shared,),
            write_through=True,
            latency=(1000, 10, 0, 0),
            params=WHOLE_PROMPTS,
            replicas=2,
        )
        return world.run(prompts(rows))[0].cached_tokens.tolist()

    assert cached("replica") == [0, 0, 0, 0]
    assert cached("cluster") == [0, 0, 52, 52]


@pytest.mark.parametrize("field", ["used_blocks", "evicted_blocks", "written_bytes", "promoted_blocks"])
def test_a_wrong_count_is_caught(field: str) -> None:
    world = TieredWorld(tiers=(tier(50),), params=WHOLE_PROMPTS)
    result, _ = world.run(THERE_AND_BACK)
    blocks_are_conserved(result, world)
    replica = result.replicas[0]
    wrong = replace(replica.kv_tiers[0], **{field: getattr(replica.kv_tiers[0], field) + 1})
    with pytest.raises(LawBroken):
        blocks_are_conserved(replace(result, replicas=(replace(replica, kv_tiers=(wrong,)),)), world)
