"""Laws of models with sliding windows: KV groups that give blocks back, and prompts that begin alike."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.core import Status, Trace
from tests.laws.checkers import all_laws, pools_are_empty, results_agree
from tests.laws.settings import few
from tests.laws.tiers_world import BLOCK_SIZE, TieredWorld, prompts, shared_prompts
from tests.laws.world import MAX_MODEL_LEN

SETTINGS: list[dict[str, Any]] = [
    {},
    {"prefix_cache_retention_interval": "all", "max_num_seqs": 3},
    {"prefix_cache_retention_interval": 8, "scheduling_policy": "priority"},
    {"version": "0.15"},
    {"version": "0.19", "max_num_batched_tokens": 64, "enable_chunked_prefill": False},
    {"async_scheduling": True},
    {"enable_prefix_caching": False, "watermark": 0.2},
    {"long_prefill_token_threshold": 5, "long_prefill_token_threshold_adaptive": True},
]
WINDOWS = [(9, 0), (0, 9), (9, 9, 0), (5, 0, 0), (9,)]
BLOCKS = MAX_MODEL_LEN // BLOCK_SIZE


@st.composite
def sliding_worlds(draw: st.DrawFn) -> TieredWorld:
    windows = draw(st.sampled_from(WINDOWS))
    enough = (BLOCKS + 1) * len(windows)  # one longest sequence, even before its window slides
    return TieredWorld(
        tiers=None,
        windows=windows,
        params=draw(st.sampled_from(SETTINGS)),
        kv_blocks=enough + draw(st.sampled_from([0, 1, 7, 60])),
        replicas=draw(st.integers(1, 2)),
        latency=draw(st.sampled_from([(1000, 10, 3, 1), (1000, 0, 0, 0)])),
    )


@few
@given(world=sliding_worlds(), trace=shared_prompts())
def test_all_laws_hold_and_fast_forward_is_stepping(world: TieredWorld, trace: Trace) -> None:
    result, policies = world.run(trace)
    all_laws(result, trace, MAX_MODEL_LEN)
    pools_are_empty(policies)
    stepped, watched = world.run(trace, fast_forward=False)
    pools_are_empty(watched)
    results_agree(result, stepped)


@few
@given(trace=shared_prompts(most=20), retention=st.sampled_from([0, 8, "all"]))
def test_windows_that_see_everything_are_full_attention(trace: Trace, retention: Any) -> None:
    """A window of the longest sequence gives nothing back: two groups in twice the blocks are one group."""
    params = {"prefix_cache_retention_interval": retention, "enable_prefix_caching": False}
    sliding = TieredWorld(tiers=None, windows=(0, 1000), params=params, kv_blocks=2 * 20)
    plain = TieredWorld(tiers=None, params=params, kv_blocks=20)
    one, other = (world.run(trace)[0] for world in (sliding, plain))
    assert one.last_token_ns.tolist() == other.last_token_ns.tolist()


@pytest.mark.parametrize("windows", WINDOWS)
def test_a_pool_of_one_longest_sequence_serves_everybody(windows: tuple[int, ...]) -> None:
    rows = [(0, [10 * i + j for j in range(7)], 4) for i in range(8)]
    world = TieredWorld(tiers=None, windows=windows, kv_blocks=(BLOCKS + 1) * len(windows))
    result, _ = world.run(prompts(rows))
    assert (result.status == Status.COMPLETED).all()
    assert result.preemptions[0] == 0
