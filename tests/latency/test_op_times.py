"""The time of a run by group of kernels: the same parts that a single step is explained by."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from simserve.core import Chunk
from simserve.core.operation import Operation
from simserve.deploy.build import build
from simserve.latency.base import PAGE
from simserve.latency.explain import Decoded, explain_step, op_times
from simserve.scenario import Scenario

SCENARIO = {
    "name": "ops",
    "model": "llama-3.1-8b",
    "engine": "vllm-0.33",
    "workload": {
        "synthetic": {
            "requests": 60,
            "arrivals": {"kind": "poisson", "rate_per_s": 30.0},
            "prompt_tokens": {"kind": "lognormal", "p50": 400, "p90": 1500},
            "output_tokens": {"kind": "lognormal", "p50": 60, "p90": 150},
        }
    },
    "pools": [{"name": "all", "gpu": "h100_sxm"}],
}


@pytest.fixture
def deployment():
    return build(Scenario.model_validate(SCENARIO))


ROUNDING_NS = 20.0


def explained(latency, decodes: int, context: int, chunks: list[Chunk]) -> dict[str, float]:
    """Return ns by group of one step, from the parts that `simserve profile step` prints."""
    found: defaultdict[str, float] = defaultdict(float)
    for part in explain_step(latency, decodes, context, chunks):
        found[part.group] += 1000 * part.us
    return {name: ns for name, ns in found.items() if ns > ROUNDING_NS}


def test_a_step_with_prompts_falls_into_the_parts_that_explain_it(deployment) -> None:
    latency = deployment.pools[0].latency
    chunks = [Chunk(0, 700, 0, 1), Chunk(1, 300, 512, 0)]
    latency.forget()
    latency.step_ns(12, 9000, chunks)
    assert op_times(latency, []) == pytest.approx(explained(latency, 12, 9000, chunks), abs=3)


def test_decode_steps_fall_into_the_parts_that_explain_them(deployment) -> None:
    latency = deployment.pools[0].latency
    latency.forget()
    visits = np.zeros(PAGE, np.int64)
    visits[500] = 3
    durations = np.diff(np.frombuffer(latency.decode_page(20, 0), np.int64))
    one = explained(latency, 20, 20 * 500, [])
    found = op_times(latency, [Decoded(20, 0, visits, durations)])
    assert found == pytest.approx({name: 3 * ns for name, ns in one.items()}, abs=9)


def test_the_groups_of_a_run_add_up_to_its_busy_time(deployment) -> None:
    result = deployment.simulate()
    assert sum(result.op_ns.values()) == pytest.approx(sum(r.busy_ns for r in result.replicas), rel=1e-6)
    assert {"attention, decode steps", "attention, steps with prompts", "MLP"} <= set(result.op_ns)
    assert "attention projections" in result.op_ns
    assert "other kernels" not in result.op_ns
    shares = deployment.summarize(result).operations
    assert sum(shares.values()) == pytest.approx(1)


@pytest.mark.parametrize(
    "model", ["llama-3.1-70b", "deepseek-v3", "deepseek-v3.2", "qwen3-235b-a22b", "qwen3-next-80b-a3b"]
)
def test_every_kernel_has_a_group(model: str) -> None:
    pools = [{"name": "all", "gpu": "h200_sxm", "tp": 8, "weights_dtype": "fp8"}]
    plan = build(Scenario.model_validate(SCENARIO | {"model": model, "pools": pools})).pools[0].latency.plan
    ops = (*plan.per_token, *plan.per_sequence)
    assert {op.name for op in ops if op.group is Operation.OTHER} == set()


def test_groups_follow_from_where_a_kernel_runs_not_from_its_name() -> None:
    """By the architecture: what an indexer multiplies is attention, what gates a shared expert is an MLP."""
    pools = [{"name": "all", "gpu": "h200_sxm", "tp": 8, "weights_dtype": "fp8"}]
    plan = build(Scenario.model_validate(SCENARIO | {"model": "deepseek-v3.2", "pools": pools})).pools[0]
    groups = {op.name: op.group for op in (*plan.latency.plan.per_token, *plan.latency.plan.per_sequence)}
    assert groups["indexer q"] is groups["q up"] is groups["attention out"] is Operation.PROJECTIONS
    assert groups["router gate"] is groups["routed experts"] is Operation.EXPERTS
    assert groups["shared expert up"] is groups["MLP down"] is Operation.MLP
    assert groups["attention all-reduce"] is groups["logits all-gather"] is Operation.COLLECTIVES
    assert groups["embedding"] is groups["output head"] is groups["sampling"] is Operation.ENDS
    assert groups["norm"] is groups["final norm"] is groups["q and latent norm"] is Operation.NORMS
