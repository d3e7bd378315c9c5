"""Memory that cannot hold everybody: all finish, the oldest is never set back, and it takes no time.

What is larger than the whole cache is refused (`sim/test_reported_failures`, A1). Here everybody fits alone.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from simserve.core import Result, Status, Trace
from simserve.engines.vllm.running import RunningWalk
from tests.laws.checkers import LawBroken, all_laws
from tests.laws.world import MAX_MODEL_LEN, World, make_trace

SECONDS = 5
WORLDS = [
    ("vllm", {"max_num_batched_tokens": 16}),
    ("vllm", {"max_num_batched_tokens": 16, "scheduler_reserve_full_isl": False}),
    ("vllm", {"max_num_batched_tokens": 16, "version": "0.15"}),
    ("vllm", {"max_num_batched_tokens": 16, "version": "0.19", "enable_prefix_caching": False}),
    ("vllm", {"max_num_batched_tokens": 16, "async_scheduling": True, "scheduler_reserve_full_isl": False}),
    ("vllm", {"max_num_batched_tokens": 16, "watermark": 0.2, "prefill_schedule_interval": 3}),
    ("sglang", {"chunked_prefill_size": 16, "schedule_conservativeness": 0.0}),
    ("sglang", {"chunked_prefill_size": 16, "disable_overlap_schedule": True, "enable_mixed_chunk": True}),
    ("sglang", {"chunked_prefill_size": 16, "schedule_conservativeness": 0.0, "disable_radix_cache": True}),
    ("orca", {}),
    ("static", {"batch_size": 4, "timeout_ms": 0}),
]
every_engine = pytest.mark.parametrize(("policy", "params"), WORLDS, ids=[f"{p}-{o}" for p, o in WORLDS])


def progress(result: Result, trace: Trace, begun: float) -> None:
    """Everybody ends, nobody goes before the oldest, and the run is short."""
    all_laws(result, trace, MAX_MODEL_LEN)
    if not (result.status == Status.COMPLETED).all():
        raise LawBroken("somebody did not finish")
    if result.preemptions[0]:
        raise LawBroken("the oldest was set back")
    if result.last_token_ns[0] > result.last_token_ns.min():
        raise LawBroken("the oldest was overtaken by an equal")
    if time.process_time() - begun > SECONDS:
        raise LawBroken(f"more than {SECONDS} s")


def serve(policy: str, params: dict[str, Any], trace: Trace) -> Result:
    begun = time.process_time()
    result = World(policy, params).run(trace)
    progress(result, trace, begun)
    return result


@every_engine
def test_many_that_fit_alone_and_not_together(policy: str, params: dict[str, Any]) -> None:
    """Twenty requests of 55 tokens in a pool of 60."""
    rows = 20
    serve(policy, params, make_trace([0] * rows, [40] * rows, [15] * rows, max_tokens=[15] * rows))


@every_engine
def test_short_prompts_whose_answers_grow_into_each_other(policy: str, params: dict[str, Any]) -> None:
    """All prompts fit at once, and their answers do not: 12 x 5 tokens now, 12 x 45 in the end."""
    result = serve(policy, params, make_trace([0] * 12, [5] * 12, [40] * 12, max_tokens=[40] * 12))
    if policy == "vllm" and "watermark" not in params:
        assert result.preemptions.sum() > 0


@every_engine
def test_a_long_prompt_that_fills_the_pool_chunk_by_chunk(policy: str, params: dict[str, Any]) -> None:
    """Prompts of nearly the whole pool, in chunks, some at once and some while others compute."""
    arrivals = np.array([0, 0, 0, 500, 1500, 9000])
    serve(policy, params, make_trace(arrivals, [58] * 6, [2] * 6, max_tokens=[2] * 6))


def test_planted_the_oldest_makes_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunningWalk, "_victim", lambda self: self.order[0])
    with pytest.raises(LawBroken, match="the oldest was set back"):
        serve(*WORLDS[1], make_trace([0] * 12, [5] * 12, [40] * 12))
