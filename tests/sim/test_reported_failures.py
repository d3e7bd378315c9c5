"""Failures that users reported of comparable simulators and engines, end to end: none of them happens here.

A1: inference-sim#373. A4: inference-sim#963. B1: inference-sim#1122. B3: inference-sim PR#458.
B6: llm-d-inference-sim#266. E3: SimAI#239, #241.
"""

from __future__ import annotations

import time

import numpy as np
import pytest

from simserve.core import Chunk, Request, Result, Status
from simserve.engines.base import POLICIES
from simserve.engines.vllm.overhead import OVERHEAD as VLLM
from simserve.errors import InvariantError
from simserve.hardware import load_gpu
from simserve.latency import compile_step_latency
from simserve.latency.base import PAGE
from simserve.metrics import summarize
from simserve.model import load_model
from simserve.model.spec import Parallelism
from tests.laws.checkers import requests_are_conserved
from tests.laws.world import World, make_trace

S = 1_000_000_000
MS = 1_000_000
CACHE = {"kv_blocks": 50, "block_size": 16, "max_model_len": 800, "latency": (10 * MS, 0, 0, 0)}
"""50 blocks of 16 tokens, as in the report."""


def served(result: Result) -> list[bool]:
    return (result.status == Status.COMPLETED).tolist()


@pytest.mark.parametrize("policy", POLICIES.names())
def test_a1_what_never_fits_is_refused_and_the_others_are_served(policy: str) -> None:
    """Ten prompts of 57 blocks and more at 10/s, two small ones between them."""
    prompts = [900, 900, 100, 905, 910, 915, 920, 100, 930, 940, 950, 960]
    trace = make_trace(np.arange(12) * S // 10, prompts, [20] * 12)
    result = World(policy).but(**CACHE).run(trace)
    assert served(result) == [prompt == 100 for prompt in prompts]
    requests_are_conserved(result, trace)
    assert result.reasons == ("prompt of max_model_len 800 tokens or more (as set by the test)",)
    assert (result.reason[result.status == Status.REFUSED] == 0).all()
    assert summarize(result).counts.refused == 10


@pytest.mark.parametrize("policy", POLICIES.names())
def test_a1_an_answer_that_does_not_fit_is_cut_and_noted(policy: str) -> None:
    """The prompt fits, prompt and output do not: the answer ends at max_model_len, like an engine's."""
    result = World(policy).but(**CACHE).run(make_trace([0, 0], [700, 100], [300, 20]))
    assert served(result) == [True, True]
    assert result.output_tokens.tolist() == [100, 20]
    assert result.reasons == ("answer cut at max_model_len 800 (as set by the test)",)
    assert result.reason.tolist() == [0, -1]


def test_a4_a_scheduler_that_stands_still_is_stopped(monkeypatch) -> None:
    """A cache that is said to be exhausted for ever: the run must end, soon, and name the requests."""
    monkeypatch.setattr("simserve.kvcache.BlockPool.admission_need", lambda *_: 10**9)
    begun = time.process_time()
    with pytest.raises(
        InvariantError, match=r"replica-0 is stuck at 0 ns: .*2 requests outstanding \(first: 0, 1\)"
    ):
        World("vllm").but(**CACHE).run(make_trace([0, 0], [50, 60], [5, 5]))
    assert time.process_time() - begun < 1


@pytest.mark.parametrize("policy", ["vllm", "sglang"])
def test_b1_end_to_end_includes_waiting_and_recompute(policy: str) -> None:
    """Long in, long out, too little memory: the time of a preempted request has its steps and its waits."""
    params = {"schedule_conservativeness": 0.0} if policy == "sglang" else {}
    rows, prompt, output = 30, 100, 90
    trace = make_trace([0] * rows, [prompt] * rows, [output] * rows, max_tokens=[output] * rows)
    result = World(policy, params).but(**CACHE, watched=False).run(trace)
    again = result.preemptions > 0
    assert again.sum() >= (5 if policy == "vllm" else 1)
    end_to_end, ttft = result.last_token_ns - result.arrival_ns, result.first_token_ns - result.arrival_ns
    assert (end_to_end >= output * 10 * MS).all()
    # An engine keeps the tokens that it has shown: a preemption delays the rest, not the first.
    assert (end_to_end - ttft >= (output - 1) * 10 * MS + result.requeued_ns)[again].all()
    assert (result.requeued_ns[again] > 0).all()
    assert (result.requeued_ns[~again] == 0).all()
    summary = summarize(result)
    assert summary.whole.e2e_ms.mean == pytest.approx(end_to_end.mean() / MS)
    assert summary.whole.ttft_ms.mean == pytest.approx(ttft.mean() / MS)


@pytest.mark.parametrize("policy", POLICIES.names())
def test_b3_no_phantom_gaps_of_zero_or_one_token(policy: str) -> None:
    result = World(policy).but(**CACHE).run(make_trace([0, 2 * S, 4 * S], [10] * 3, [0, 1, 3]))
    assert served(result) == [True] * 3
    assert result.output_tokens.tolist() == [0, 1, 3]
    assert result.first_token_ns[0] == -1
    assert result.last_token_ns[0] > result.first_scheduled_ns[0]
    assert result.first_token_ns[1] == result.last_token_ns[1]
    assert (int(result.gaps.count.sum()), result.gaps.sum_ns) == (2, 2 * 10 * MS)
    whole = summarize(result).whole
    assert (whole.ttft_ms.count, whole.tpot_ms.count, whole.itl_ms.count) == (2, 1, 2)


def test_b6_ttft_contains_the_queue_and_shows_it_apart() -> None:
    """A prompt takes 4 s and 16 clients come at once: the k-th sees its first token after 4 k seconds."""
    world = World("vllm", {"max_num_seqs": 1}).but(**{**CACHE, "latency": (4 * S, 0, 0, 0)})
    result = world.run(make_trace([0] * 16, [100] * 16, [1] * 16))
    ttft_s = (result.first_token_ns - result.arrival_ns) / S
    queued_s = (result.first_scheduled_ns - result.arrival_ns) / S
    assert ttft_s.tolist() == [4.0 * k for k in range(1, 17)]
    assert queued_s.tolist() == [4.0 * k for k in range(16)]


def test_e3_no_time_is_negative_or_missing_outside_the_tables() -> None:
    """Batches, contexts and chunks far beyond what was measured; what was extrapolated is said."""
    latency = compile_step_latency(
        load_model("llama-3.1-8b"), load_gpu("h100_sxm"), Parallelism(tp=8), overhead=VLLM
    )
    for sequences, page in ((1, 0), (1, 2000), (5000, 0), (5000, 100)):
        times = np.diff(np.asarray(latency.decode_page(sequences, page)))
        assert times.min() >= 1, f"{sequences} sequences, page {page}"
    request = Request(0, 0, 10**7, 1)
    for tokens, cached in ((1, 0), (1, 10**7), (10**6, 0), (65_536, 10**6)):
        assert latency.step_ns(0, 0, [Chunk(request, tokens, cached, last=True)]) >= 1
    shares = latency.step_provenance()
    assert all(np.isfinite(value) and value >= 0 for value in shares.values())
    assert shares["extrapolated"] + shares["analytic"] > 0
    visits = np.ones(PAGE, dtype=np.int64)
    far = latency.decode_provenance(5000, 2000, visits)
    assert far["extrapolated"] + far["analytic"] > 0
