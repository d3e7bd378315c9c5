"""Fast-forward equals stepping where steps depend on how unequal the contexts are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from simserve.deploy.build import build
from simserve.engines.base import POLICIES
from simserve.engines.vllm.overhead import OVERHEAD as VLLM
from simserve.hardware import load_gpu
from simserve.latency import compile_step_latency
from simserve.latency.step_time import TableLatency
from simserve.model import load_model
from simserve.model.spec import Parallelism
from simserve.router.base import ROUTERS
from simserve.scenario.load import load_scenario
from simserve.sim import ReplicaSpec, simulate
from simserve.sim.replica import Replica
from simserve.sim.uneven import LengthLane
from tests.laws.checkers import all_laws, results_agree
from tests.laws.test_fast_forward_on_traces import (
    BLOCK_SIZE,
    PARAMS,
    SLICES,
    agree_under_pressure,
    needs_traces,
    piece,
    run,
)

SPLIT = """
name: a split
model: llama-3.1-8b
engine: vllm-0.33
fast_forward: {}
workload:
  synthetic:
    requests: 120
    arrivals: {{kind: poisson, rate_per_s: 6.0}}
    prompt_tokens: {{kind: lognormal, p50: 700, p90: 1800}}
    output_tokens: {{kind: constant, value: 120}}
pools:
  - {{name: prefill, role: prefill, gpu: rtx_pro_6000}}
  - {{name: decode, role: decode, gpu: rtx_pro_6000}}
transfer: {{link: rdma_400g}}
"""


def latency(pp: int = 1) -> TableLatency:
    return compile_step_latency(
        load_model("llama-3.1-8b"), load_gpu("rtx_pro_6000"), Parallelism(pp=pp), overhead=VLLM
    )


@needs_traces
@pytest.mark.parametrize("policy", ["vllm", "sglang", "static"])
def test_fast_forward_is_stepping(policy: str) -> None:
    agree_under_pressure(SLICES["azure conversation"], policy, latency(), latency())


@needs_traces
def test_pipelines_mind_lengths_too() -> None:
    part = SLICES["azure conversation"]
    trace = piece(part)
    limits = {"kv_blocks": part.kv_blocks, "block_size": BLOCK_SIZE, "max_model_len": part.max_model_len}
    results = []
    for fast_forward in (True, False):
        cls, router = POLICIES.get("vllm"), ROUTERS.get("round_robin")
        policy = cls(cls.Params(**PARAMS["vllm"]), **limits, lanes=2)
        spec = ReplicaSpec("one", "all", 2, policy, latency(pp=2), **limits, limit_reason="as set")
        results.append(simulate(trace, [spec], router(router.Params(), seed=0), fast_forward=fast_forward))
    results_agree(*results)
    all_laws(results[0], trace, part.max_model_len)


def test_both_sides_of_a_split_mind_lengths(tmp_path: Path) -> None:
    """Prompts on one card, answers on another: the same to the nanosecond, and KV moves as ever."""
    results = []
    for fast_forward in ("true", "false"):
        file = tmp_path / f"{fast_forward}.yaml"
        file.write_text(SPLIT.format(fast_forward), encoding="utf-8")
        deployment = build(load_scenario(file))
        assert all(pool.latency.uneven for pool in deployment.pools if isinstance(pool.latency, TableLatency))
        results.append(deployment.simulate())
    results_agree(*results)
    assert results[0].split is not None
    assert (results[0].last_token_ns > results[0].first_token_ns).all()


@needs_traces
def test_lanes_know_the_contexts_of_their_members(monkeypatch: pytest.MonkeyPatch) -> None:
    """After every decision: the lane's sum is the batch's, its longest is the longest answer's."""
    seen = []
    plan = Replica._plan

    def checked(self, batch, now_ns):
        lane = self._lane
        contexts = sorted(
            answer.request.prompt_tokens + answer.shown + lane.step - answer.joined_step
            for answer in self.outputs.answers.values()
            if answer.end_step >= 0
        )
        assert isinstance(lane, LengthLane)
        lengths = lane._lengths(len(contexts))
        assert (lengths.sequences, lengths.total) == (batch.decodes, batch.decode_context)
        assert list(lengths.longest) == contexts[::-1]
        assert lengths.squares == sum(context**2 for context in contexts)
        assert lane.longest == contexts[-1]
        seen.append(lane.level_ns(self.latency.uneven))
        return plan(self, batch, now_ns)

    monkeypatch.setattr(Replica, "_plan", checked)
    part = SLICES["azure conversation"]
    run(piece(part), part, "vllm", latency(), True)
    assert len(seen) > 300
    assert len(set(seen)) > 10


@needs_traces
def test_unequal_contexts_cost_time() -> None:
    """The same traffic with every prompt of the mean length is served sooner."""
    part = SLICES["azure conversation"]
    trace = piece(part)
    mean = np.full(len(trace), round(trace.prompt_tokens.mean()))
    alike = replace(trace, prompt_tokens=mean)
    ends = [run(one, part, "vllm", latency(), True).last_token_ns.max() for one in (trace, alike)]
    assert ends[1] < ends[0]


@needs_traces
def test_what_is_added_is_booked() -> None:
    """Time by provenance adds up to the busy time, with what unequal contexts add in it."""
    part = SLICES["azure conversation"]
    result = run(piece(part), part, "vllm", latency(), True)
    busy_ns = sum(replica.busy_ns for replica in result.replicas)
    assert sum(result.provenance_ns.values()) == pytest.approx(busy_ns, rel=1e-6)
    assert sum(result.op_ns.values()) == pytest.approx(busy_ns, rel=1e-3)
