from typing import Any

import numpy as np
import pandas as pd
import pytest

from simserve.errors import TraceError
from simserve.experts import contiguous, imbalance
from simserve.experts.balancing import eplb
from simserve.experts.popularity import Zipf, popularity_of
from simserve.experts.state import ExpertPlan, ExpertState, Rebalancing, Swaps, swapped

SHARES = Zipf(s=1.0).shares(4, 64, 4, seed=2)


def plan(**how: Any) -> ExpertPlan:
    settings: dict[str, Any] = {"interval_steps": 100, "window_steps": 50, "redundant": 16}
    rebalancing = Rebalancing(**(settings | how))
    once = Swaps(SHARES, 0.5, 1, lambda number: 1_000 if number == 0 else None)
    return ExpertPlan(SHARES, contiguous(4, 64, 8, 16), once, rebalancing)


def test_a_rebalance_sees_only_its_window() -> None:
    state = ExpertState(plan(blocking=True, expert_bytes=1000, bytes_per_s=1e9))
    assert (state.next_step, state.next_ns) == (100, 1_000)
    state.advance(60, 1_000)
    after = swapped(SHARES, 0.5, [1, 0x7377, 0])
    assert np.array_equal(state.shares, after)
    wait_ns = state.advance(100, 2_000)
    # The window holds 10 steps of the old popularity (50..59) and 40 of the new.
    assert np.array_equal(state.placement.slots, eplb((10 * SHARES + 40 * after) / 50, 8, 16).slots)
    assert wait_ns > 0
    assert wait_ns % 1000 == 0  # whole experts of 1,000 bytes at 1 byte per ns
    assert state.next_step == 200
    state.advance(200, 3_000)
    assert np.array_equal(state.placement.slots, eplb(after, 8, 16).slots)


def test_a_hidden_rebalance_takes_effect_when_the_weights_are_there() -> None:
    state = ExpertState(plan(expert_bytes=1000, bytes_per_s=1e9))
    state.advance(60, 1_000)
    before = state.placement
    assert state.advance(100, 2_000) == 0
    assert state.placement is before
    there_ns = state.next_ns
    assert there_ns is not None
    assert there_ns > 2_000
    state.advance(150, there_ns)
    assert state.placement is not before
    assert state.moved_bytes > 0


def test_balanced_ranks_are_left_alone() -> None:
    state = ExpertState(plan(skip_above=1e-6))
    state.advance(100, 500)
    assert (state.rebalances, state.skipped) == (0, 1)


def test_a_rebalance_repairs_what_a_swap_broke() -> None:
    state = ExpertState(plan(blocking=True))
    state.advance(100, 500)
    fresh = imbalance(state.placement.rank_load(state.shares)).mean()
    state.advance(120, 1_000)
    stale = imbalance(state.placement.rank_load(state.shares)).mean()
    state.advance(200, 1_500)
    again = imbalance(state.placement.rank_load(state.shares)).mean()
    assert fresh < 1.1
    assert stale > 1.3
    assert again < 1.1


def test_a_recorded_trace_gives_its_counts_and_its_times(tmp_path) -> None:
    rows = [
        (time, layer, expert, 1 + (expert == layer) * 3 * (time > 0))
        for time in (0, 1.5)
        for layer in range(2)
        for expert in range(8)
    ]
    path = tmp_path / "load.csv"
    pd.DataFrame(rows, columns=["time_s", "layer", "expert", "count"]).to_csv(path, index=False)
    recording = popularity_of({"kind": "trace", "path": str(path)}).recording(2, 8)
    assert recording is not None
    assert recording.start_ns.tolist() == [0, 1_500_000_000]
    assert recording.counts[1].tolist() == [[4, 1, 1, 1, 1, 1, 1, 1], [1, 4, 1, 1, 1, 1, 1, 1]]
    with pytest.raises(TraceError, match=r"row 9: layer = 1, allowed: below 1"):
        popularity_of({"kind": "trace", "path": str(path)}).recording(1, 8)
