"""Prefix-cache hits: what must not move them, and what may only raise them."""

from __future__ import annotations

import numpy as np
import pytest

from simserve.core import Trace
from simserve.engine import ReplicaSpec, simulate
from simserve.paths import data_dir
from simserve.policy.vllm import VllmParams, VllmPolicy
from simserve.router.base import ROUTERS, RouterParams
from simserve.workload import load_trace, take
from tests.engine.plain_latency import PlainLatency

_BLOCK = 16


def hits(trace: Trace, kv_blocks: int, clients: int, **options) -> np.ndarray:
    """Return the cached tokens of each request, served by one replica to so many clients."""
    longest = int((trace.prompt_tokens + trace.output_tokens).max()) + 1
    policy = VllmPolicy(
        VllmParams(**options),
        kv_blocks=kv_blocks,
        block_size=_BLOCK,
        max_model_len=longest,
        content=VllmPolicy.content_of(trace, _BLOCK),
    )
    spec = ReplicaSpec("one", "one", 1, policy, PlainLatency(), kv_blocks, _BLOCK, longest, "as long as any")
    router = ROUTERS.get("round_robin")(RouterParams(), seed=1)
    return simulate(trace, [spec], router, closed_loop=clients).cached_tokens


@pytest.fixture(scope="module")
def trace() -> Trace:
    return take(load_trace(data_dir("traces") / "long_context.jsonl.gz"), 80)


def test_hits_do_not_depend_on_the_chunk_size(trace: Trace) -> None:
    """Known failure C1: a later chunk hashed by its own positions missed. One client, so order is fixed."""
    whole = hits(trace, 200_000, 1, max_num_batched_tokens=2048)
    assert whole.sum() > 0
    for chunk in (16, 100, 512, 1000):
        assert np.array_equal(hits(trace, 200_000, 1, max_num_batched_tokens=chunk), whole), chunk


def test_more_memory_never_lowers_hits(trace: Trace) -> None:
    """LRU over one client's requests: a larger pool holds all that a smaller one does."""
    needed = int((trace.prompt_tokens + trace.output_tokens).max()) // _BLOCK + 2
    totals = [int(hits(trace, needed * factor, 1).sum()) for factor in (1, 2, 8, 64)]
    assert totals == sorted(totals)
    assert totals[0] < totals[-1]


def test_caching_off_finds_nothing(trace: Trace) -> None:
    assert hits(trace, 200_000, 4, enable_prefix_caching=False).sum() == 0
