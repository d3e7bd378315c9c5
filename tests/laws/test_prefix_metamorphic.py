"""Prefix-cache hits: what must not move them, and what may only raise them."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from simserve.core import Request, Trace
from simserve.engines.base import POLICIES
from simserve.kvcache import PrefixCache
from simserve.router.base import ROUTERS, RouterParams
from simserve.sim import Clients, ReplicaSpec, simulate
from tests.laws.checkers import LawBroken
from tests.laws.world import make_trace
from tests.sim.plain_latency import PlainLatency

BLOCKS = {"vllm": 16, "sglang": 1}
CHUNK = {"vllm": "max_num_batched_tokens", "sglang": "chunked_prefill_size"}


def hits(trace: Trace, kv_tokens: int, clients: int, engine: str = "vllm", **options) -> np.ndarray:
    """Return the cached tokens of each request, served by one replica to so many clients."""
    longest = int((trace.prompt_tokens + trace.output_tokens).max()) + 1
    policy, block = POLICIES.get(engine), BLOCKS[engine]
    blocks = kv_tokens // block
    made = policy(
        policy.Params(**options),
        kv_blocks=blocks,
        block_size=block,
        max_model_len=longest,
        content=policy.content_of(trace, block),
    )
    spec = ReplicaSpec("one", "one", 1, made, PlainLatency(), blocks, block, longest, "as long as any")
    router = ROUTERS.get("round_robin")(RouterParams(), seed=1)
    return simulate(trace, [spec], router, clients=Clients(closed_loop=clients)).cached_tokens


@pytest.fixture(scope="module")
def trace() -> Trace:
    """Forty prompts of up to 2,000 tokens in ids of 64, in which five families go on in different ways."""
    draw = random.Random(1)
    rows = []
    for row in range(40):
        family, shared, own = draw.randrange(5), draw.randint(1, 20), draw.randint(1, 10)
        rows.append([1000 * family + i for i in range(shared)] + [10_000 + 100 * row + i for i in range(own)])
    made = make_trace(
        [0] * len(rows),
        [64 * len(ids) - draw.randrange(64) for ids in rows],
        [draw.randint(1, 30) for _ in rows],
        block_ids=[number for ids in rows for number in ids],
        block_offsets=np.cumsum([0, *map(len, rows)]),
    )
    return replace(made, block_tokens=64)


def no_matter_how_prompts_are_cut(trace: Trace, engine: str) -> None:
    """One client, so that the order is fixed."""
    whole = hits(trace, 1_000_000, 1, engine, **{CHUNK[engine]: 2048})
    if not whole.sum():
        raise LawBroken("no hits at all")
    for chunk in (16, 100, 512, 1000):
        cut = hits(trace, 1_000_000, 1, engine, **{CHUNK[engine]: chunk})
        if not np.array_equal(cut, whole):
            raise LawBroken(f"hits with chunks of {chunk} tokens: {cut.sum()}, of 2,048: {whole.sum()}")


def more_memory_finds_more(trace: Trace, engine: str) -> None:
    """LRU over one client's requests: a larger pool holds all that a smaller one does."""
    needed = int((trace.prompt_tokens + trace.output_tokens).max()) + 4 * 16
    totals = [int(hits(trace, needed * factor, 1, engine).sum()) for factor in (1, 2, 8, 64)]
    if totals != sorted(totals) or totals[0] == totals[-1]:
        raise LawBroken(f"hit tokens with growing memory: {totals}")


@pytest.mark.parametrize("engine", BLOCKS)
def test_hits_do_not_depend_on_the_chunk_size(trace: Trace, engine: str) -> None:
    """Known failure C1: a later chunk hashed by its own positions missed."""
    no_matter_how_prompts_are_cut(trace, engine)


@pytest.mark.parametrize("engine", BLOCKS)
def test_more_memory_never_lowers_hits(trace: Trace, engine: str) -> None:
    more_memory_finds_more(trace, engine)


def test_caching_off_finds_nothing(trace: Trace) -> None:
    assert hits(trace, 1_000_000, 4, enable_prefix_caching=False).sum() == 0
    assert hits(trace, 1_000_000, 4, "sglang", disable_radix_cache=True).sum() == 0


def test_planted_only_the_first_chunk_is_cached(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    enter = PrefixCache._enter

    def first_only(self: PrefixCache, request: Request, held: list[int], full: int) -> None:
        if not held:
            enter(self, request, held, full)

    monkeypatch.setattr(PrefixCache, "_enter", first_only)
    with pytest.raises(LawBroken, match="hits with chunks of"):
        no_matter_how_prompts_are_cut(trace, "vllm")


def test_planted_a_large_cache_forgets(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    hit = PrefixCache.hit
    monkeypatch.setattr(
        PrefixCache, "hit", lambda self, one: (0, 0) if self.total > 5_000 else hit(self, one)
    )
    with pytest.raises(LawBroken, match="with growing memory"):
        more_memory_finds_more(trace, "vllm")
