"""Prefix hits of sessions and of shared beginnings, in both engines; the numbers follow from the lengths."""

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

LONGEST = 4000
BLOCKS = {"vllm": 16, "sglang": 1}
ENGINES = [
    ("vllm", {"max_num_batched_tokens": 64, "max_num_seqs": 8}),
    ("vllm", {"max_num_batched_tokens": 64, "max_num_seqs": 8, "async_scheduling": True, "version": "0.15"}),
    ("sglang", {"chunked_prefill_size": 64}),
    ("sglang", {"chunked_prefill_size": 64, "disable_overlap_schedule": True, "enable_mixed_chunk": True}),
]
every_engine = pytest.mark.parametrize(("engine", "params"), ENGINES)


def serve(engine: str, params: dict[str, object], trace: Trace, kv_tokens: int = 64_000) -> Result:
    policy, block, longest = POLICIES.get(engine), BLOCKS[engine], min(LONGEST, kv_tokens)
    made = policy(
        policy.Params(**params),
        kv_blocks=kv_tokens // block,
        block_size=block,
        max_model_len=longest,
        content=policy.content_of(trace, block),
    )
    spec = ReplicaSpec("r", "p", 1, made, PlainLatency(), kv_tokens // block, block, longest, "as set")
    return simulate(trace, [spec], ROUTERS.get("round_robin")(RouterParams(), seed=0))


def turns(prompts: list[list[int]], outputs: list[list[int]]) -> Trace:
    """Sessions, given as the prompt and output lengths of their turns."""
    rows = [
        (s, p, o)
        for s, pair in enumerate(zip(prompts, outputs, strict=True))
        for p, o in zip(*pair, strict=True)
    ]
    return make_trace(
        [0] * len(rows),
        [prompt for _, prompt, _ in rows],
        [output for _, _, output in rows],
        session=[session for session, _, _ in rows],
        think_ns=[0] * len(rows),
    )


@every_engine
def test_a_turn_finds_all_of_the_last_but_the_token_without_kv(
    engine: str, params: dict[str, object]
) -> None:
    """A prompt of p and an answer of o tokens leave p + o - 1 with KV, of which whole blocks are found.

    SGLang's overlapped loop has launched one more step when a stop token is seen: it gives the last token KV.
    """
    prompts, outputs = [[100, 400, 900], [37, 50, 61]], [[41, 99, 7], [3, 1, 2]]
    cached = serve(engine, params, turns(prompts, outputs)).cached_tokens.tolist()
    block, expected = BLOCKS[engine], []
    without_kv = 0 if engine == "sglang" and "disable_overlap_schedule" not in params else 1
    for prompt, output in zip(prompts, outputs, strict=True):
        with_kv = [p + o - without_kv for p, o in zip(prompt, output, strict=True)]
        expected += [0, *(n // block * block for n in with_kv[:-1])]
    assert cached == expected


@every_engine
def test_a_repeated_turn_leaves_one_token_to_compute(engine: str, params: dict[str, object]) -> None:
    """The next prompt is shorter than what the session has: all of it is there, but one token is computed."""
    cached = serve(engine, params, turns([[200, 161]], [[40, 5]])).cached_tokens.tolist()
    assert cached == [0, 160]


@every_engine
def test_sessions_share_nothing_with_each_other(engine: str, params: dict[str, object]) -> None:
    cached = serve(engine, params, turns([[200], [200], [200]], [[5]] * 3)).cached_tokens
    assert not cached.any()


@every_engine
def test_groups_share_their_beginning(engine: str, params: dict[str, object]) -> None:
    """Two system prompts of 96 tokens in ids of 32; the rest of each prompt is its own."""
    starts = [[0, 1, 2], [10, 11, 12]]
    rows = [starts[i % 2] + [100 + i] for i in range(8)]
    trace = make_trace(
        [100_000_000 * i for i in range(8)],
        [96 + 20] * 8,
        [4] * 8,
        block_ids=[block for row in rows for block in row],
        block_offsets=np.arange(9) * 4,
    )
    cached = serve(engine, params, replace(trace, block_tokens=32)).cached_tokens.tolist()
    assert cached == [0, 0] + [96] * 6


@every_engine
def test_a_pool_that_holds_one_session_forgets_the_other(engine: str, params: dict[str, object]) -> None:
    """Two sessions take turns; a prompt of 600 tokens drops the other's 500, so no second turn finds all."""
    trace = make_trace(
        [0, 0, 1, 1], [500, 600, 500, 600], [4, 4, 4, 4], session=[0, 0, 1, 1], think_ns=[0, 10**9, 0, 10**9]
    )
    roomy = serve(engine, params, trace).cached_tokens
    tight = serve(engine, params, trace, kv_tokens=800).cached_tokens
    assert (roomy[[1, 3]] >= 496).all()
    assert tight.sum() < roomy.sum()
