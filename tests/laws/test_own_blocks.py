"""A request knows itself: where prompts share nothing, telling their content changes nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simserve.core import Result, Trace
from simserve.engines.base import POLICIES
from simserve.router.base import ROUTERS, RouterParams
from simserve.sim import ReplicaSpec, simulate
from tests.laws.world import make_trace
from tests.sim.plain_latency import PlainLatency

SIZE = 16
SETTINGS = [
    {"version": version, **more}
    for version in ("0.15", "0.19", "0.33")
    for more in (
        {},
        {"async_scheduling": True},
        {"scheduling_policy": "priority"},
        {"max_num_batched_tokens": 100},
        {} if version == "0.15" else {"scheduler_reserve_full_isl": False},
    )
]


def serve(trace: Trace, blocks: int, windows: tuple[int, ...], **settings) -> Result:
    policy = POLICIES.get("vllm")
    params = policy.Params(**{"max_num_batched_tokens": 512, "max_num_seqs": 16} | settings)
    content, longest = policy.content_of(trace, SIZE), 12_000 if blocks == 572 else 1000
    made = policy(
        params, kv_blocks=blocks, block_size=SIZE, max_model_len=longest, content=content, windows=windows
    )
    spec = ReplicaSpec("one", "one", 1, made, PlainLatency(), blocks, SIZE, longest, "as set")
    return simulate(trace, [spec], ROUTERS.get("round_robin")(RouterParams(), seed=0))


def random_trace(seed: int) -> Trace:
    draw = np.random.default_rng(seed)
    return make_trace(
        np.cumsum(draw.integers(0, 20_000, 40)),
        draw.integers(1, 500, 40),
        draw.integers(1, 400, 40),
        priority=draw.integers(0, 3, 40),
    )


def with_ids(trace: Trace) -> Trace:
    """The same requests, every block named, no name used twice."""
    counts = -(-trace.prompt_tokens // SIZE)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    ids = np.arange(offsets[-1])
    return replace(trace, block_ids=ids, block_offsets=offsets, block_tokens=SIZE)


@pytest.mark.parametrize("windows", [(), (0, 64)], ids=["one-group", "window"])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_ids_of_distinct_prompts_change_nothing(settings, windows) -> None:
    preemptions = 0
    for seed in range(4):
        trace = random_trace(seed)
        blocks = 63 * max(1, len(windows)) + 10 * seed
        untold, told = (serve(one, blocks, windows, **settings) for one in (trace, with_ids(trace)))
        for name in ("first_token_ns", "last_token_ns", "cached_tokens", "preemptions", "requeued_ns"):
            assert np.array_equal(getattr(untold, name), getattr(told, name)), name
        preemptions += int(untold.preemptions.sum())
    assert preemptions


@pytest.mark.parametrize("version", ["0.15", "0.19", "0.33"])
def test_a_request_that_was_preempted_goes_on_where_it_was(version: str) -> None:
    """572 blocks hold either request and not both: who is preempted finds its blocks again."""
    settings = {"version": version, "max_num_batched_tokens": 2048}
    if version != "0.15":
        settings["scheduler_reserve_full_isl"] = False
    trace = make_trace([0, 1_000_000], [1000, 9000], [1200, 100])
    untold, told = (serve(one, 572, (), **settings) for one in (trace, with_ids(trace)))
    assert untold.preemptions.tolist() == told.preemptions.tolist()
    assert untold.preemptions.sum() <= 2
    assert untold.last_token_ns.tolist() == told.last_token_ns.tolist()
