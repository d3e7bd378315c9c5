"""Fast-forward equals stepping on recorded traffic, with too little memory and time stamps that tie."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

from simserve.core import Result, Trace
from simserve.engines.base import POLICIES
from simserve.engines.vllm.overhead import OVERHEAD as VLLM
from simserve.hardware import load_gpu
from simserve.latency import compile_step_latency
from simserve.latency.base import StepLatency
from simserve.model import load_model
from simserve.model.spec import Parallelism
from simserve.router.base import ROUTERS
from simserve.sim import ReplicaSpec, simulate
from simserve.workload import load_trace, take
from tests.laws.checkers import all_laws, results_agree
from tests.places import SHARED
from tests.sim.plain_latency import PlainLatency

TRACES = SHARED / "traces"
needs_traces = pytest.mark.reference("traces")
pytestmark = needs_traces
MS = 1_000_000

ROUND = (8 * MS, 0, 0, 0)
"""Step boundaries on whole milliseconds, like Mooncake's time stamps."""
UNEVEN = (5 * MS, 20_011, 53, 0)


class Slice(NamedTuple):
    """The head of a trace, sped up, and too little memory for it."""

    file: str
    rows: int
    speed_up: float
    step_ns: tuple[int, int, int, int]
    max_model_len: int
    kv_blocks: int
    longer: int = 1
    """Factor on the answers: beside such prompts the recorded ones are too short to outgrow any memory."""


SLICES = {
    "azure conversation": Slice("azure_llm_2023_conv.csv.gz", 400, 20.0, UNEVEN, 5_000, 1_000),
    "azure code": Slice("azure_llm_2023_code.csv.gz", 300, 100.0, ROUND, 7_400, 1_200, longer=8),
    "mooncake conversation": Slice(
        "mooncake_fast25_conversation.jsonl.gz", 200, 30.0, ROUND, 60_000, 12_000, longer=3
    ),
}
FEWEST_PREEMPTIONS = {"vllm": 5, "sglang": 1}
"""SGLang learns from a retraction to admit less, so they stay few."""
BLOCK_SIZE = 16
MOST_OUTPUTS = 400
PARAMS = {
    "vllm": {"max_num_batched_tokens": 2048, "max_num_seqs": 64},
    "sglang": {"chunked_prefill_size": 2048, "schedule_conservativeness": 0.0},
    "static": {"batch_size": 8, "timeout_ms": 500},
}


def piece(part: Slice) -> Trace:
    """The slice with answers cut at MOST_OUTPUTS, which the clients also declare."""
    trace = take(load_trace(TRACES / part.file), part.rows)
    arrival_ns = (trace.arrival_ns / part.speed_up).astype(np.int64)
    if part.step_ns is ROUND:
        arrival_ns = arrival_ns // MS * MS
    return replace(
        trace,
        arrival_ns=arrival_ns,
        output_tokens=np.minimum(trace.output_tokens * part.longer, MOST_OUTPUTS),
        max_tokens=np.full(len(trace), MOST_OUTPUTS),
    )


def run(trace: Trace, part: Slice, policy: str, latency: StepLatency, fast_forward: bool) -> Result:
    limits = {"kv_blocks": part.kv_blocks, "block_size": BLOCK_SIZE, "max_model_len": part.max_model_len}
    cls, router = POLICIES.get(policy), ROUTERS.get("least_outstanding_tokens")
    specs = [
        ReplicaSpec(
            name=f"replica-{index}",
            pool="all",
            gpus=1,
            policy=cls(cls.Params(**PARAMS.get(policy, {})), **limits),
            latency=latency,
            **limits,
            limit_reason="as set",
        )
        for index in range(2)
    ]
    return simulate(trace, specs, router(router.Params(), seed=0), fast_forward=fast_forward)


def agree_under_pressure(part: Slice, policy: str, one: StepLatency, other: StepLatency) -> None:
    """Run both ways on latencies that are equal and have nothing booked."""
    trace = piece(part)
    fast, stepped = run(trace, part, policy, one, True), run(trace, part, policy, other, False)
    results_agree(fast, stepped)
    all_laws(fast, trace, part.max_model_len)
    wakeups = [sum(replica.wakeups for replica in result.replicas) for result in (fast, stepped)]
    assert wakeups[0] < 0.8 * wakeups[1], "next to nothing was fast-forwarded"
    assert max(replica.timeline.kv_used_blocks.max() for replica in fast.replicas) > 0.8 * part.kv_blocks
    assert fast.preemptions.sum() >= FEWEST_PREEMPTIONS.get(policy, 0), (
        "memory is too large to prove anything"
    )


@pytest.mark.parametrize("policy", POLICIES.names())
@pytest.mark.parametrize("name", SLICES)
def test_fast_forward_is_stepping(name: str, policy: str) -> None:
    part = SLICES[name]
    agree_under_pressure(part, policy, PlainLatency(*part.step_ns), PlainLatency(*part.step_ns))


def test_the_stamps_tie_with_each_other_and_with_steps() -> None:
    """The traffic is what the test above needs: stamps that repeat, on the grid of the step times."""
    arrival_ns = piece(SLICES["mooncake conversation"]).arrival_ns
    assert (np.diff(arrival_ns) == 0).sum() > 20
    assert (arrival_ns % (8 * MS) == 0).sum() > 20


@pytest.mark.parametrize("policy", ["vllm", "sglang"])
def test_fast_forward_is_stepping_on_measured_kernels(policy: str) -> None:
    one, other = (
        compile_step_latency(load_model("llama-3.1-8b"), load_gpu("h100_sxm"), Parallelism(), overhead=VLLM)
        for _ in range(2)
    )
    agree_under_pressure(SLICES["azure conversation"], policy, one, other)
