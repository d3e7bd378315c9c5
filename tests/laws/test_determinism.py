"""Same inputs, same bytes; and a trace that was written and read again is the same input."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.core import Trace
from simserve.deploy.build import build
from simserve.router.base import ROUTERS
from simserve.scenario import Scenario
from simserve.workload import load_trace, write_trace
from tests.laws.checkers import LawBroken, results_agree
from tests.laws.settings import every_world, fewer
from tests.laws.world import World, deployments, make_trace, traces


@every_world
@fewer
@given(data=st.data())
def test_the_same_run_twice_gives_the_same_bytes(world: World, data) -> None:
    deployed, trace = data.draw(deployments(world)), data.draw(traces(sessions=True))
    results_agree(deployed.run(trace), deployed.run(trace), whole=True)


def test_a_deployment_can_be_run_twice() -> None:
    """The compiled step latency, which books where its times came from, is shared by both runs."""
    scenario = Scenario.model_validate(
        {
            "name": "twice",
            "model": "llama-3.1-8b",
            "engine": "vllm-0.33",
            "workload": {
                "synthetic": {
                    "requests": 60,
                    "arrivals": {"kind": "poisson", "rate_per_s": 5},
                    "prompt_tokens": {"kind": "constant", "value": 200},
                    "output_tokens": {"kind": "uniform", "min": 20, "max": 80},
                }
            },
            "pools": [{"name": "all", "gpu": "h100_sxm", "replicas": 2}],
            "seed": 1,
        }
    )
    deployment = build(scenario)
    results_agree(deployment.simulate(), deployment.simulate(), whole=True)
    results_agree(deployment.simulate(), build(scenario).simulate(), whole=True)


def test_planted_a_router_without_a_seed(monkeypatch) -> None:
    dice = random.Random(5)
    monkeypatch.setattr(ROUTERS.get("random"), "choose", lambda self, *_: dice.randrange(3))
    world = World("orca").but(replicas=3, router="random")
    trace = make_trace(range(20), [5] * 20, [5] * 20)
    with pytest.raises(LawBroken, match="differs"):
        results_agree(world.run(trace), world.run(trace), whole=True)


def workload(*, sessions: bool, limits: bool) -> Trace:
    """Arrivals to the nanosecond, with everything that a format can say."""
    rng = np.random.default_rng(7)
    rows = 60
    arrival_ns = np.cumsum(rng.integers(0, 4000, rows))
    arrival_ns -= arrival_ns[0]
    session = think_ns = None
    if sessions:
        session = np.sort(rng.integers(0, 20, rows))
        _, first, session = np.unique(session, return_index=True, return_inverse=True)
        arrival_ns = arrival_ns[first[session]]
        think_ns = np.where(np.isin(np.arange(rows), first), 0, rng.integers(0, 5, rows) * 1000)
    return make_trace(
        arrival_ns,
        rng.integers(1, 40, rows),
        rng.integers(1, 15, rows),
        max_tokens=rng.integers(5, 30, rows) if limits else None,
        priority=rng.integers(0, 3, rows) if limits else None,
        session=session,
        think_ns=think_ns,
    )


@pytest.mark.parametrize("sessions", [False, True])
@pytest.mark.parametrize("ending", ["plain.csv", "plain.csv.gz", "plain.parquet"])
@pytest.mark.parametrize("world", [World("vllm", {"max_num_batched_tokens": 16}), World("static")])
def test_run_export_replay(tmp_path: Path, world: World, ending: str, sessions: bool) -> None:
    trace = workload(sessions=sessions, limits=True)
    if sessions:  # readers have an order of their own for the turns of different sessions
        write_trace(trace, tmp_path / "first.csv", "plain")
        trace = load_trace(tmp_path / "first.csv")
    write_trace(trace, tmp_path / ending, "plain")
    results_agree(world.run(load_trace(tmp_path / ending)), world.run(trace), whole=True)


def test_run_export_replay_through_a_public_format(tmp_path: Path) -> None:
    trace = workload(sessions=False, limits=False)
    write_trace(trace, tmp_path / "trace.jsonl", "mooncake")
    world = World("orca", {"max_num_seqs": 4}).but(replicas=2, router="least_outstanding_tokens")
    results_agree(world.run(load_trace(tmp_path / "trace.jsonl")), world.run(trace), whole=True)


def test_planted_a_file_that_cuts_digits(tmp_path: Path) -> None:
    """Written to the microsecond, a trace is another one."""
    trace = workload(sessions=False, limits=True)
    coarse = make_trace(
        trace.arrival_ns // 1000 * 1000,
        trace.prompt_tokens,
        trace.output_tokens,
        max_tokens=trace.max_tokens,
        priority=trace.priority,
    )
    write_trace(coarse, tmp_path / "plain.csv", "plain")
    world = World("vllm", {"max_num_batched_tokens": 16})
    with pytest.raises(LawBroken, match="arrival_ns differs"):
        results_agree(world.run(load_trace(tmp_path / "plain.csv")), world.run(trace))
