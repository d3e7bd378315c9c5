"""Transformations of traces: what they keep, what they refuse, what they note."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from simserve.core import Trace, TraceOrigin
from simserve.errors import ScenarioError
from simserve.workload import (
    scale_rate_by_compression,
    scale_rate_by_thinning,
    spread_quantised,
    stats,
    take,
    tile,
    window,
)

S = 10**9


def trace(arrivals_s: list[float], **columns: list[int]) -> Trace:
    n = len(arrivals_s)
    more = {name: np.array(values, dtype=np.int64) for name, values in columns.items()}
    more["think_ns"] = np.zeros(n, dtype=np.int64) if "session" in more else None
    return Trace(
        arrival_ns=np.array([round(t * S) for t in arrivals_s], dtype=np.int64),
        prompt_tokens=np.arange(1, n + 1),
        output_tokens=np.arange(11, n + 11),
        origin=TraceOrigin("made by hand", "test"),
        block_tokens=16 if "block_ids" in more else 0,
        **more,  # type: ignore[arg-type]
    )


def test_compression_keeps_all_requests_and_divides_time() -> None:
    fast = scale_rate_by_compression(trace([0, 1, 3, 3.5]), 2)
    assert fast.arrival_ns.tolist() == [0, S // 2, 3 * S // 2, 7 * S // 4]
    assert fast.prompt_tokens.tolist() == [1, 2, 3, 4]
    assert fast.origin.changes == ("rate x 2 by compressing time",)


def test_compression_moves_sessions_and_keeps_their_pauses() -> None:
    # Session 0 starts at 0 with turns 4 s apart, session 1 starts at 2 s.
    fast = scale_rate_by_compression(trace([0, 2, 4], session=[0, 1, 0]), 2)
    assert fast.arrival_ns.tolist() == [0, S, 4 * S]
    slow = scale_rate_by_compression(trace([0, 2, 4], session=[0, 1, 0]), 0.25)
    assert slow.arrival_ns.tolist() == [0, 4 * S, 8 * S]
    assert slow.prompt_tokens.tolist() == [1, 3, 2]


def test_thinning_keeps_a_seeded_share() -> None:
    whole = trace(list(range(20_000)))
    half = scale_rate_by_thinning(whole, 0.5, seed=1)
    assert len(half) == pytest.approx(10_000, abs=4 * 71)  # four standard deviations
    again = scale_rate_by_thinning(whole, 0.5, seed=1)
    assert (half.prompt_tokens == again.prompt_tokens).all()
    other = scale_rate_by_thinning(whole, 0.5, seed=2)
    assert half.prompt_tokens.tolist() != other.prompt_tokens.tolist()
    assert half.origin.changes[0].startswith("rate x 0.5 by thinning (seed 1)")


def test_thinning_keeps_sessions_whole() -> None:
    sessions = np.repeat(np.arange(500), 4)
    thin = scale_rate_by_thinning(trace(list(range(2000)), session=sessions.tolist()), 0.3, seed=5)
    assert set(np.bincount(thin.session)) == {4}


def test_thinning_cannot_raise_the_rate() -> None:
    with pytest.raises(ScenarioError, match="use compression"):
        scale_rate_by_thinning(trace([0, 1]), 1.5, seed=0)


@pytest.mark.parametrize("factor", [0, -1, float("nan"), float("inf")])
def test_bad_factors(factor: float) -> None:
    with pytest.raises(ScenarioError, match="rate factor"):
        scale_rate_by_compression(trace([0, 1]), factor)
    with pytest.raises(ScenarioError, match="rate factor"):
        scale_rate_by_thinning(trace([0, 1]), factor, seed=0)


def test_compression_and_thinning_differ_on_bursts(public: Callable) -> None:
    """The mean rate halves both ways, the silence of the Azure code trace only under compression changes."""
    code = public("azure_llm_2023_code.csv.gz")
    slow, thin = scale_rate_by_compression(code, 0.5), scale_rate_by_thinning(code, 0.5, seed=3)
    assert stats(slow).arrivals.rate_per_s == pytest.approx(2.566 / 2, rel=0.01)
    assert stats(thin).arrivals.rate_per_s == pytest.approx(2.566 / 2, rel=0.05)
    assert stats(slow).arrivals.longest_gap_s == pytest.approx(2 * 217, rel=0.01)
    assert stats(thin).arrivals.longest_gap_s == pytest.approx(217, rel=0.01)


def test_take_cuts_sessions_at_their_end() -> None:
    first = take(trace([0, 1, 2, 3], session=[0, 1, 0, 1]), 3)
    assert first.session.tolist() == [0, 1, 0]
    assert first.origin.changes == ("first 3 requests: 3 of 4 requests kept",)
    assert take(first, 10) is first
    with pytest.raises(ScenarioError, match="limit 0"):
        take(first, 0)


def test_window_keeps_whole_sessions_that_start_in_it() -> None:
    some = window(trace([0, 1, 2, 3, 4], session=[0, 1, 0, 2, 1]), 1, 3)
    assert some.prompt_tokens.tolist() == [2, 5]
    assert some.arrival_ns.tolist() == [0, 3 * S]
    assert some.session.tolist() == [0, 0]
    assert window(trace([0, 1, 2]), 0, 1).prompt_tokens.tolist() == [1]
    with pytest.raises(ScenarioError, match="none of the 3 requests"):
        window(trace([0, 1, 2]), 5, 6)
    with pytest.raises(ScenarioError, match="start < end"):
        window(trace([0, 1, 2]), 2, 1)


def test_blocks_follow_their_rows() -> None:
    whole = trace([0, 1, 2], block_ids=[7, 8, 7, 9, 9], block_offsets=[0, 2, 4, 5])
    later = window(whole, 1, 9)
    assert later.block_ids.tolist() == [0, 1, 1]
    assert later.block_offsets.tolist() == [0, 2, 3]


def test_tile_repeats_with_one_gap_between() -> None:
    three = tile(trace([0, 1, 2], session=[0, 1, 0], block_ids=[0, 1, 0], block_offsets=[0, 1, 2, 3]), 3)
    assert three.arrival_ns.tolist() == [t * S for t in range(9)]
    assert three.session.tolist() == [0, 1, 0, 2, 3, 2, 4, 5, 4]
    assert three.block_ids.tolist() == [0, 1, 0, 2, 3, 2, 4, 5, 4]
    assert three.block_offsets.tolist() == list(range(10))
    same = tile(trace([0, 1], block_ids=[0, 1], block_offsets=[0, 1, 2]), 2, same_content=True)
    assert same.block_ids.tolist() == [0, 1, 0, 1]


def test_tile_keeps_rate_and_reuse(public: Callable) -> None:
    once = public("mooncake_fast25_synthetic.jsonl.gz")
    before, after = stats(once), stats(tile(once, 3))
    assert after.requests == 3 * before.requests
    assert after.arrivals.rate_per_s == pytest.approx(before.arrivals.rate_per_s, rel=1e-3)
    assert after.prefix.token_hit_rate == pytest.approx(before.prefix.token_hit_rate, rel=1e-12)


def test_spreading_a_quantised_trace(public: Callable) -> None:
    """All 12,031 requests sit on 1,180 stamps 3 s apart (2.997 to 3.003); spread, the 3 s pulse is gone."""
    literal = public("mooncake_fast25_conversation.jsonl.gz")
    spread = spread_quantised(literal, seed=1)
    before, after = stats(literal).arrivals, stats(spread).arrivals
    assert len(spread) == 12_031
    assert (spread.prompt_tokens == literal.prompt_tokens).all()
    moved = spread.arrival_ns - literal.arrival_ns
    assert moved.max() - moved.min() <= 2_997_000_000
    assert "2.997 s" in spread.origin.changes[-1]
    assert "10,851 equal" in spread.origin.changes[-1]
    assert after.equal_stamps == 0
    assert after.windows[0].empty_share < 0.1 < before.windows[0].empty_share
    assert after.windows[2].idc == pytest.approx(before.windows[2].idc, rel=0.1)


def test_spreading_uses_the_resolution_as_quantum() -> None:
    spread = spread_quantised(trace([0, 0, 0.001, 5, 5]), seed=0)
    assert np.diff(spread.arrival_ns).min() >= 0
    assert (spread.arrival_ns[3] - spread.arrival_ns[0]) / S == pytest.approx(5, abs=0.001)
    alone = spread_quantised(trace([0, 1, 2]), seed=0)
    assert alone.arrival_ns.tolist() == [0, S, 2 * S]
    assert "not spread" in alone.origin.changes[-1]
