"""Hit rate against capacity: published figures, a cache simulated directly, and refusals."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.core import Trace, TraceOrigin
from simserve.errors import TraceError
from simserve.workload import cache_curve, stats
from simserve.workload.cache_curve import prefix_reuse

BLOCK = 4
CAPACITIES = (1_000, 2_000, 5_000, 10_000, 20_000, 30_000, 50_000, 100_000)

# Token hit rates at CAPACITIES, then token and block hit rate without limit (../shared/traces/README.md).
PUBLISHED = {
    "mooncake_fast25_conversation.jsonl.gz": (
        (0.0454, 0.0547, 0.1125, 0.2153, 0.2931, 0.3321, 0.3615, 0.3708),
        (0.3736, 0.3664),
    ),
    "mooncake_fast25_synthetic.jsonl.gz": (
        (0.0840, 0.1467, 0.2843, 0.4313, 0.5819, 0.6356, 0.6512, 0.6512),
        (0.6512, 0.6396),
    ),
    "llmservingsim_sharegpt300_llama31_blk16.jsonl.gz": (
        (0.0141, 0.0251, 0.0472, 0.0759, 0.0759, 0.0759, 0.0759, 0.0759),
        (0.0759, 0.0765),
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_curves(name: str, public: Callable[..., Trace]) -> None:
    limited, unlimited = PUBLISHED[name]
    trace = public(name)
    curve = cache_curve(trace, [*CAPACITIES, None])
    assert [point.token_hit_rate for point in curve.points[:-1]] == pytest.approx(limited, abs=0.5e-4)
    last = curve.points[-1]
    assert (last.token_hit_rate, last.block_hit_rate) == pytest.approx(unlimited, abs=0.5e-4)
    ceiling = stats(trace).prefix
    assert ceiling is not None
    assert (last.token_hit_rate, last.block_hit_rate) == (ceiling.token_hit_rate, ceiling.block_hit_rate)


def test_a_log_by_hand() -> None:
    """Depths of the third request: 0 lies under 3, 2, 1 (4 blocks deep), 1 under 3, 2 (3 deep), 9 is new."""
    trace = make([[0, 1, 2], [3], [0, 1, 9]])
    points = cache_curve(trace, [0, 3, 4, None]).points
    assert [point.hit_blocks for point in points] == [0, 0, 2, 2]
    assert points[2].capacity_tokens == 16
    assert points[2].token_hit_rate == pytest.approx(8 / 28)
    assert points[2].block_hit_rate == pytest.approx(2 / 7)
    assert prefix_reuse(trace).enough_blocks == 4


def make(rows: Sequence[Sequence[int]], last_tokens: int = BLOCK) -> Trace:
    """A trace whose row i has these block ids, the last one with `last_tokens` tokens."""
    counts = np.array([len(row) for row in rows], dtype=np.int64)
    zeros = np.zeros(len(rows), dtype=np.int64)
    return Trace(
        arrival_ns=zeros,
        prompt_tokens=np.maximum(counts * BLOCK - BLOCK + last_tokens, 1),
        output_tokens=zeros + 1,
        origin=TraceOrigin("made.jsonl", "mooncake"),
        block_ids=np.array([block for row in rows for block in row], dtype=np.int64),
        block_offsets=np.concatenate(([0], np.cumsum(counts))),
        block_tokens=BLOCK,
    )


def simulated(rows: Sequence[Sequence[int]], capacity: int | None) -> list[int]:
    """Leading hits of each row in one LRU cache that evicts whenever it is too full."""
    cache: OrderedDict[int, None] = OrderedDict()
    hits = []
    for row in rows:
        held = [block in cache for block in row]
        hits.append([*held, False].index(False))
        for block in row:
            cache[block] = None
            cache.move_to_end(block)
            while capacity is not None and len(cache) > capacity:
                cache.popitem(last=False)
    return hits


prefixes = st.lists(st.lists(st.integers(0, 2), max_size=6), min_size=1, max_size=30)
"""Contents of prompts from an alphabet of three, so that prefixes are shared often."""


def chained(contents: Sequence[Sequence[int]]) -> list[list[int]]:
    """Number prefixes: equal ids stand for equal content up to and including the block."""
    codes: dict[tuple[int, ...], int] = {}
    return [[codes.setdefault(tuple(row[: k + 1]), len(codes)) for k in range(len(row))] for row in contents]


@given(contents=prefixes, last_tokens=st.integers(1, BLOCK))
def test_equals_a_simulated_cache(contents: list[list[int]], last_tokens: int) -> None:
    rows = chained(contents)
    trace = make(rows, last_tokens)
    capacities = [*range(1, 25), None]
    for capacity, point in zip(capacities, cache_curve(trace, capacities).points, strict=True):
        hits = simulated(rows, capacity)
        assert point.hit_blocks == sum(hits)
        tokens = np.minimum(np.array(hits) * BLOCK, trace.prompt_tokens * (np.array(hits) > 0))
        assert point.hit_tokens == tokens.sum()


@given(contents=prefixes, last_tokens=st.integers(1, BLOCK))
def test_smaller_cache_blocks_equal_a_simulated_cache(contents: list[list[int]], last_tokens: int) -> None:
    """Every id split by hand into the blocks of 2 tokens that it begins."""
    # Full and partial use of one content are two ids, as a reader would have it: the last block is marked.
    rows = chained([[*row[:-1], 10 + row[-1]] if row else [] for row in contents])
    trace = make(rows, last_tokens)
    begun = (last_tokens + 1) // 2
    parts = [
        [2 * block + part for block in row for part in range(begun if block == row[-1] else 2)]
        for row in rows
    ]
    capacities = [*range(1, 49), None]
    for capacity, point in zip(capacities, cache_curve(trace, capacities, 2).points, strict=True):
        hits = np.array(simulated(parts, capacity))
        tokens = np.minimum(hits * 2, trace.prompt_tokens * (hits > 0))
        # Parts of one id are found together or not at all, so no partial id is lost in the sum.
        assert point.hit_tokens == tokens.sum()


@given(contents=prefixes)
def test_enough_is_the_smallest_capacity_without_loss(contents: list[list[int]]) -> None:
    rows = chained(contents)
    reuse = prefix_reuse(make(rows))
    enough = reuse.enough_blocks
    assert sum(simulated(rows, enough)) == sum(simulated(rows, None))
    assert enough == 0 or sum(simulated(rows, enough - 1)) < sum(simulated(rows, None))
    *limited, unlimited = reuse.round_capacities()
    assert unlimited is None
    assert limited[-1] is not None
    assert limited[-1] >= enough


def test_refusals(public: Callable[..., Trace]) -> None:
    trace = make([[0, 1]])
    for size in (3, 8, 0):
        with pytest.raises(TraceError, match=f"cache blocks of {size} tokens do not divide .* 4"):
            cache_curve(trace, [1], size)
    with pytest.raises(TraceError, match="cannot hold -1 blocks"):
        cache_curve(trace, [-1])
    with pytest.raises(TraceError, match=r"azure_llm_2023_conv.*no block ids.*mooncake \(hash_ids\)"):
        cache_curve(public("azure_llm_2023_conv.csv.gz"), [1])
