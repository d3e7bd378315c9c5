"""The policy inside the engine: fast-forward, conservation, oversized requests, one result late."""

import dataclasses
import itertools

import numpy as np
import pytest

from simserve.core import Trace, TraceOrigin
from simserve.engines.sglang import BlockContent, SglangParams, SglangPolicy
from simserve.router.base import ROUTERS
from simserve.sim import simulate
from simserve.sim.specs import ReplicaSpec


class FlatLatency:
    """Every step takes 1 us, and 1 ns per prompt token."""

    stages = 1

    def decode_page(self, sequences, page):
        from array import array

        return array("q", range(0, 1025 * 1000, 1000))

    def step_ns(self, decodes, decode_context, chunks):
        return 1000 + sum(chunk.tokens for chunk in chunks)

    def stage_ns(self, step_ns, decodes, decode_context, chunks):
        return (step_ns,)

    def host_ns(self, sequences, chunks, running):
        return 0

    def hop_ns(self, tokens):
        return 0

    def decode_provenance(self, sequences, page, visits):
        return {"analytic": float(visits.sum() * 1000)}

    def step_provenance(self):
        return {}


def trace_of(arrival_ns, prompt_tokens, output_tokens, max_tokens=None, priority=None):
    columns = (arrival_ns, prompt_tokens, output_tokens, max_tokens, priority)
    arrays = [None if column is None else np.asarray(column, np.int64) for column in columns]
    return Trace(*arrays[:3], TraceOrigin("test", "test"), max_tokens=arrays[3], priority=arrays[4])


def random_trace(seed, n=150, slack=3):
    rng = np.random.default_rng(seed)
    outputs = rng.integers(0, 60, n)
    return trace_of(
        np.sort(rng.integers(0, 300_000, n)),
        rng.integers(1, 200, n),
        outputs,
        outputs * rng.integers(1, slack, n) + 1,
        rng.choice([0, 5, 20], n),
    )


def shared_trace(seed, n=150, block_tokens=32):
    """Prompts that begin with one of 5 texts of 3 blocks, at a load that memory does not hold."""
    rng = np.random.default_rng(seed)
    heads, prompt_tokens = rng.integers(0, 5, n), rng.integers(1, 200, n)
    blocks = -(-prompt_tokens // block_tokens)
    ids = [
        3 * head + i if i < 3 else 1000 + 100 * row + i
        for row, (head, count) in enumerate(zip(heads, blocks, strict=True))
        for i in range(count)
    ]
    outputs = rng.integers(1, 150, n)
    plain = trace_of(np.sort(rng.integers(0, 100_000, n)), prompt_tokens, outputs, outputs + 3)
    return dataclasses.replace(
        plain,
        block_ids=np.array(ids, np.int64),
        block_offsets=np.cumsum([0, *blocks]).astype(np.int64),
        block_tokens=block_tokens,
    )


def run(trace, fast_forward=True, kv_blocks=1500, block_size=1, max_model_len=400, **options):
    policy = SglangPolicy(
        SglangParams(**options),
        kv_blocks=kv_blocks,
        block_size=block_size,
        max_model_len=max_model_len,
        content=None if trace.block_ids is None else BlockContent(trace),
    )
    replica = ReplicaSpec("r", "p", 1, policy, FlatLatency(), kv_blocks, block_size, max_model_len, "test")
    router = ROUTERS.get("round_robin")
    result = simulate(trace, [replica], router(router.Params(), seed=0), fast_forward=fast_forward)
    return result, policy


COLUMNS = (
    "first_scheduled_ns", "first_token_ns", "last_token_ns", "output_tokens", "cached_tokens", "preemptions"
)  # fmt: skip
OPTIONS = [
    {},
    {"disable_overlap_schedule": True},
    {"disable_radix_cache": True, "ignore_eos": True},
    {"enable_mixed_chunk": True, "chunked_prefill_size": 64},
    {"enable_mixed_chunk": True, "chunked_prefill_size": 64, "disable_overlap_schedule": True},
    {"enable_priority_scheduling": True, "max_running_requests": 6},
    {"schedule_policy": "lpm", "chunked_prefill_size": 100},
    {"schedule_policy": "dfs-weight", "schedule_conservativeness": 0.1},
    {"schedule_policy": "random", "radix_eviction_policy": "lfu"},
    {"schedule_policy": "lof", "chunked_prefill_size": -1, "schedule_conservativeness": 0.0},
]


@pytest.mark.parametrize(("options", "block_size"), list(itertools.product(OPTIONS, [1, 16])))
def test_fast_forward_equals_stepping_and_everything_ends(options, block_size):
    trace = random_trace(seed=len(str(options)))
    kv_blocks = 1600 // block_size
    fast, policy = run(trace, True, kv_blocks, block_size, **options)
    slow, _ = run(trace, False, kv_blocks, block_size, **options)
    for name in COLUMNS:
        assert np.array_equal(getattr(fast, name), getattr(slow, name)), name
    assert np.array_equal(fast.output_tokens, trace.output_tokens)
    pool = policy.state.pool
    assert (policy.running, policy.waiting, policy.kv_used_blocks) == (0, 0, 0)
    assert pool.tree.protected == 0
    assert pool.free + pool.tree.evictable == pool.capacity


@pytest.mark.parametrize("options", [{}, {"disable_overlap_schedule": True}, {"schedule_policy": "lpm"}])
@pytest.mark.parametrize("block_size", [1, 16])
def test_fast_forward_equals_stepping_where_prompts_share_prefixes(options, block_size):
    trace = shared_trace(seed=block_size)
    kv_blocks = 900 // block_size
    options = {"schedule_conservativeness": 0.0, **options}
    fast, policy = run(trace, True, kv_blocks, block_size, **options)
    slow, _ = run(trace, False, kv_blocks, block_size, **options)
    for name in COLUMNS:
        assert np.array_equal(getattr(fast, name), getattr(slow, name)), name
    assert fast.cached_tokens.sum() > 0
    assert fast.preemptions.sum() > 0
    assert fast.replicas[0].wakeups < slow.replicas[0].wakeups
    assert policy.kv_used_blocks == 0


def test_memory_pressure_makes_retractions_that_are_computed_again():
    trace = random_trace(seed=5, n=200)
    result, _ = run(trace, kv_blocks=900, schedule_conservativeness=0.0)
    assert result.preemptions.sum() > 0
    assert result.replicas[0].recomputed_tokens > 0
    assert np.array_equal(result.output_tokens, trace.output_tokens)


@pytest.mark.parametrize("block_size", [1, 16])
@pytest.mark.parametrize("prompt_tokens", [1, 100, 300, 383, 399])
def test_a_request_that_just_fits_is_served(block_size, prompt_tokens):
    trace = trace_of([0, 0], [prompt_tokens, 5], [400 - prompt_tokens, 3])
    result, _ = run(trace, kv_blocks=400 // block_size, block_size=block_size)
    assert result.output_tokens.tolist() == [400 - prompt_tokens, 3]


def test_a_request_that_cannot_fit_does_not_block_the_others():
    result, _ = run(trace_of([0, 0], [401, 5], [1, 3]), kv_blocks=400)
    assert result.reasons != ()
    assert result.output_tokens[1] == 3


def test_an_answer_cut_by_its_limit_takes_no_extra_step_and_one_that_stops_does():
    """With overlap the next step is chosen before a stop token is seen, but the limit is known."""
    limited, _ = run(trace_of([0], [10], [5], [5]))
    stopped, _ = run(trace_of([0], [10], [5], [9]))
    at_once, _ = run(trace_of([0], [10], [5], [9]), disable_overlap_schedule=True)
    assert [r.replicas[0].steps for r in (limited, stopped, at_once)] == [5, 6, 5]
    assert limited.last_token_ns[0] == stopped.last_token_ns[0] == 10 + 5 * 1000


def test_the_ratio_starts_over_when_the_engine_idles():
    _, policy = run(trace_of([0], [10], [300]))
    assert policy.state.ratio.value == 0.7


@pytest.mark.parametrize(("within", "prompts"), [(False, [3, 1]), (True, [2, 2])])
def test_a_further_prompt_needs_room_in_max_prefill_tokens_in_older_releases(within, prompts):
    """Four prompts of 100 tokens, 250 a step: two leave 50. 0.5.23 takes a third on these, 0.5.6 does not."""
    trace = trace_of([0] * 4, [100] * 4, [20] * 4)
    result, _ = run(trace, max_prefill_tokens=250, prompts_within_max_prefill=within)
    _, together = np.unique(result.first_token_ns, return_counts=True)
    assert together.tolist() == prompts
