"""With nobody else in the system, a request takes exactly the sum of its steps."""

from __future__ import annotations

import numpy as np
import pytest

from simserve.core import Chunk, Request
from simserve.engines.base import POLICIES
from simserve.engines.vllm.overhead import OVERHEAD as VLLM
from simserve.hardware import load_gpu
from simserve.latency import compile_step_latency
from simserve.latency.base import PAGE
from simserve.model import load_model
from simserve.model.spec import Parallelism
from simserve.router.base import ROUTERS, RouterParams
from simserve.sim import ReplicaSpec, simulate
from tests.laws.world import make_trace
from tests.sim.plain_latency import PlainLatency

POLICY_PARAMS = {
    "vllm": {},
    "orca": {},
    "static": {"timeout_ms": 0},
    "sglang": {"disable_overlap_schedule": True},
}


@pytest.fixture(scope="module")
def llama_on_h100():
    return compile_step_latency(
        load_model("llama-3.1-8b"), load_gpu("h100_sxm"), Parallelism(), overhead=VLLM
    )


def run(latency, policy: str, params: dict, prompt: int, output: int, rows: int = 1, spacing_ns: int = 0):
    cls = POLICIES.get(policy)
    limits = {"kv_blocks": 20_000, "block_size": 16, "max_model_len": 100_000}
    made = cls(cls.Params(**params), **limits, lanes=latency.stages)
    spec = ReplicaSpec("r", "all", 1, made, latency, **limits, limit_reason="as set")
    trace = make_trace([row * spacing_ns for row in range(rows)], [prompt] * rows, [output] * rows)
    return simulate(trace, [spec], ROUTERS.get("round_robin")(RouterParams(), seed=0))


def step_ns(latency, pieces: list[int]) -> int:
    """Sum of the steps that compute a prompt in `pieces`."""
    request = Request(0, 0, sum(pieces), 1)
    total = done = 0
    for piece in pieces:
        done += piece
        last = done == request.prompt_tokens
        total += latency.step_ns(0, 0, [Chunk(request, piece, done - piece, last)])
    return total


def decode_ns(latency, prompt: int, output: int) -> int:
    """Sum of the steps that produce tokens 2, 3 ... of an answer; step i attends prompt + i tokens."""
    total = 0
    for context in range(prompt + 1, prompt + output):
        page = latency.decode_page(1, context // PAGE)
        total += page[context % PAGE + 1] - page[context % PAGE]
    return total


@pytest.mark.parametrize("policy", POLICY_PARAMS)
@pytest.mark.parametrize(("prompt", "output"), [(1, 1), (7, 2), (1000, 100), (2047, 3)])
def test_an_idle_system_adds_nothing(policy: str, prompt: int, output: int) -> None:
    latency = PlainLatency()
    result = run(latency, policy, POLICY_PARAMS[policy], prompt, output, rows=3, spacing_ns=10**9)
    by_hand = 1000 + 10 * prompt
    assert (result.first_token_ns - result.arrival_ns).tolist() == [by_hand] * 3
    by_hand += sum(1000 + 10 + 3 * (prompt + i) for i in range(1, output))
    assert (result.last_token_ns - result.arrival_ns).tolist() == [by_hand] * 3


@pytest.mark.parametrize("policy", POLICY_PARAMS)
@pytest.mark.parametrize(("prompt", "output"), [(1, 1), (500, 40), (1000, 100)])
def test_an_idle_system_adds_nothing_on_measured_kernels(
    llama_on_h100, policy: str, prompt: int, output: int
) -> None:
    result = run(llama_on_h100, policy, POLICY_PARAMS[policy], prompt, output)
    first = step_ns(llama_on_h100, [prompt])
    assert result.first_token_ns.tolist() == [first]
    assert result.last_token_ns.tolist() == [first + decode_ns(llama_on_h100, prompt, output)]


@pytest.mark.parametrize(
    ("policy", "params"),
    [
        ("vllm", {"max_num_batched_tokens": 300}),
        ("sglang", {"chunked_prefill_size": 304, "disable_overlap_schedule": True}),
    ],
)
def test_a_prompt_in_pieces_takes_the_sum_of_their_steps(llama_on_h100, policy: str, params: dict) -> None:
    """1,000 tokens at a budget of 300: 300 + 300 + 300 + 100; SGLang cuts at pages of 16, so it gets 304."""
    piece = 300 if policy == "vllm" else 304
    for latency in (PlainLatency(), llama_on_h100):
        pieces = [piece] * 3 + [1000 - 3 * piece]
        assert run(latency, policy, params, 1000, 1).first_token_ns.tolist() == [step_ns(latency, pieces)]


@pytest.mark.parametrize("policy", ["vllm", "orca", "static"])
@pytest.mark.parametrize("stages", [2, 4])
def test_a_lone_request_passes_all_stages_of_a_pipeline(policy: str, stages: int) -> None:
    """Each step takes p times the stage's time and p - 1 hops; the next step needs its token."""
    latency = PlainLatency(stages=stages, hop=77)
    result = run(latency, policy, POLICY_PARAMS[policy], prompt=100, output=5)
    steps = [1000 + 10 * 100] + [1000 + 10 + 3 * (100 + i) for i in range(1, 5)]
    expected = [stages * step + (stages - 1) * 77 for step in steps]
    assert result.first_token_ns.tolist() == [expected[0]]
    assert result.last_token_ns.tolist() == [sum(expected)]


@pytest.mark.parametrize("stages", [2, 4])
def test_a_full_pipeline_has_as_many_microbatches_in_flight_as_stages(stages: int) -> None:
    """One prompt per microbatch: p follow each other at the stage time, the next p wait for a free place.

    A place is held for p stage times and p - 1 hops, so p microbatches end in that time.
    """
    latency = PlainLatency(fixed=1000, per_token=0, stages=stages, hop=50)
    result = run(latency, "vllm", {"max_num_batched_tokens": 100}, prompt=100, output=1, rows=5 * stages)
    flight_ns = stages * 1000 + (stages - 1) * 50
    expected = [(turn + 1) * flight_ns + 1000 * place for turn in range(5) for place in range(stages)]
    assert result.first_token_ns.tolist() == expected


def test_a_full_pipeline_without_hops_is_p_times_as_fast() -> None:
    latency = PlainLatency(fixed=1000, per_token=0, stages=4)
    result = run(latency, "vllm", {"max_num_batched_tokens": 100}, prompt=100, output=1, rows=40)
    assert result.first_token_ns.tolist() == [4000 + 1000 * k for k in range(40)]


def test_a_long_prompt_flows_through_the_pipeline_in_pieces() -> None:
    """Pieces follow each other into the first stage: p stages and n pieces take (n + p - 1) stage times."""
    latency = PlainLatency(fixed=1000, per_token=0, per_pair=0, stages=3)
    result = run(latency, "vllm", {"max_num_batched_tokens": 100}, prompt=500, output=1)
    assert result.first_token_ns.tolist() == [(5 + 3 - 1) * 1000]


@pytest.mark.parametrize("stages", [2, 4])
def test_a_slot_of_a_pipeline_waits_for_the_engine_and_a_slower_last_stage(stages: int) -> None:
    """A lone request's next step starts when the engine has its token: nothing hides the engine's work."""
    latency = PlainLatency(stages=stages, hop=77, host=40, last=300)
    result = run(latency, "vllm", {}, prompt=100, output=3)
    steps = [1000 + 10 * 100] + [1000 + 10 + 3 * (100 + i) for i in range(1, 3)]
    expected = [40 + stages * step + 300 + (stages - 1) * 77 for step in steps]
    assert result.first_token_ns.tolist() == [expected[0]]
    assert result.last_token_ns.tolist() == [sum(expected)]


@pytest.mark.parametrize(
    ("host", "last", "period_ns"),
    [
        (0, 300, 1300.0),  # the last stage never rests
        (400, 0, 4400 / 4),  # four slots, each held for the engine's 400 and four stages
        (400, 300, 1300.0),  # 4,700 a slot is less than four times the last stage's 1,300
        (1500, 300, 5800 / 4),
    ],
)
def test_the_pace_of_a_full_pipeline(host: int, last: int, period_ns: float) -> None:
    latency = PlainLatency(fixed=1000, per_token=0, stages=4, host=host, last=last)
    result = run(latency, "vllm", {"max_num_batched_tokens": 100}, prompt=100, output=1, rows=400)
    ends = np.sort(result.first_token_ns)
    pace = (ends[-1] - ends[199]) / 200
    assert pace == pytest.approx(max(period_ns, host), rel=0.01)
