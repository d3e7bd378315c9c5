"""Clients that give up: what a scenario says, and what the summary counts."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from simserve.cli import app
from simserve.core import Status
from simserve.deploy.build import build
from simserve.engines.static import StaticPolicy
from simserve.errors import ScenarioError
from simserve.report.run.headline import headline
from simserve.router.least import RoundRobinRouter
from simserve.scenario import Scenario
from simserve.sim import Clients, simulate

ENGINES = [
    {"preset": "vllm-0.33", "max_num_seqs": 1},
    {"preset": "vllm-0.15", "max_num_seqs": 1},
    {"preset": "sglang-0.5.23", "max_running_requests": 1},
    {"policy": "static", "batch_size": 1},
    {"policy": "orca", "max_num_seqs": 1},
]
NAMES = [engine.get("preset") or engine["policy"] for engine in ENGINES]


def document(engine, requests, give_up_s=None, **more):
    """One request at a time; all of them (of equal lengths) come within a microsecond."""
    synthetic = {
        "requests": requests,
        "arrivals": {"kind": "constant", "rate_per_s": 1e7},
        "prompt_tokens": {"kind": "constant", "value": 100},
        "output_tokens": {"kind": "constant", "value": 50},
    }
    patience = {} if give_up_s is None else {"give_up_s": give_up_s}
    return {
        "name": "patience",
        "model": "llama-3.1-8b",
        "engine": {**engine, "overhead": "ideal"},
        "pools": [{"gpu": "h100_sxm"}],
        "workload": {"synthetic": synthetic, "max_tokens": "exact", **patience},
        **more,
    }


def deployment(*args, **kwargs):
    return build(Scenario.model_validate(document(*args, **kwargs)))


@pytest.mark.parametrize("engine", ENGINES, ids=NAMES)
def test_one_server_serves_whom_it_can_in_time(engine):
    # One server, service time s, all present at 0: the k-th ends at k s. With patience 5.5 s five are served.
    patient = deployment(engine, 12).simulate()
    ends_ns = np.sort(patient.last_token_ns)
    service_ns = int(np.diff(ends_ns).mean())
    it = deployment(engine, 12, give_up_s=(ends_ns[4] + service_ns / 2) / 1e9)
    result = it.simulate()
    assert (result.status == Status.COMPLETED).sum() == 5
    assert (result.status == Status.ABANDONED).sum() == 7
    counts = it.summarize(result).counts
    assert (counts.completed, counts.abandoned, counts.refused, counts.unfinished) == (5, 7, 0, 0)
    assert (result.first_scheduled_ns[result.status == Status.ABANDONED] >= 0).sum() <= 2


@pytest.mark.parametrize("engine", ENGINES, ids=NAMES)
def test_stepping_and_fast_forward_give_up_on_the_same(engine):
    runs = [deployment(engine, 12, give_up_s=1.0, fast_forward=quick).simulate() for quick in (True, False)]
    assert (runs[0].status == runs[1].status).all()
    assert (runs[0].last_token_ns == runs[1].last_token_ns).all()


@pytest.mark.parametrize(
    "engine",
    [
        {"preset": "vllm-0.33", "max_num_seqs": 4},
        {"preset": "vllm-0.33", "max_num_seqs": 4, "async_scheduling": False},
        {"preset": "sglang-0.5.23", "max_running_requests": 4},
        {"preset": "sglang-0.5.23", "max_running_requests": 4, "disable_overlap_schedule": True},
    ],
)
def test_whoever_gives_up_leaves_nothing_behind(engine):
    plain = document(engine, 80)
    plain["workload"]["synthetic"] |= {
        "arrivals": {"kind": "poisson", "rate_per_s": 30.0},
        "prompt_tokens": {"kind": "uniform", "min": 10, "max": 9000},
        "output_tokens": {"kind": "uniform", "min": 1, "max": 300},
    }
    plain["workload"]["give_up_s"] = 2.0
    it = build(Scenario.model_validate(plain))
    statuses = []
    for quick in (True, False):
        replicas = it.replicas()
        router = RoundRobinRouter(RoundRobinRouter.Params(), seed=0)
        result = simulate(
            it.trace, replicas, router, fast_forward=quick, clients=Clients(give_up_ns=2 * 10**9)
        )
        policy: Any = replicas[0].policy
        assert (policy.running, policy.waiting, policy.kv_used_blocks) == (0, 0, 0)
        statuses.append(result.status.tolist())
    assert statuses[0] == statuses[1]
    assert 0 < statuses[0].count(Status.ABANDONED) < 80


@pytest.mark.parametrize("seconds", [0, -1.0, "soon"])
def test_patience_is_a_positive_time(seconds):
    with pytest.raises(ValueError, match="give_up_s"):
        Scenario.model_validate(document(ENGINES[0], 2, give_up_s=seconds))


def test_a_split_and_a_policy_that_cannot_drop_are_refused(monkeypatch):
    pools = [{"name": role, "role": role, "gpu": "h100_sxm"} for role in ("prefill", "decode")]
    with pytest.raises(ScenarioError, match=r"give_up_s = 3.*split"):
        deployment({"preset": "vllm-0.33"}, 2, give_up_s=3.0, pools=pools)
    monkeypatch.setattr(StaticPolicy, "can_drop", False)
    with pytest.raises(ScenarioError, match=r"give_up_s = 3 is not possible with static: .* cannot drop"):
        deployment(ENGINES[3], 2, give_up_s=3.0)


def test_the_user_sees_it(tmp_path):
    scenario = tmp_path / "patience.json.yaml"
    scenario.write_text(json.dumps(document(ENGINES[0], 12, give_up_s=1.0)))
    run = CliRunner().invoke(app, ["run", str(scenario), "--out", str(tmp_path / "out")])
    assert run.exit_code == 3, run.output
    assert "abandoned by their clients" in run.output
    assert "clients gave up on" in run.stderr
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    counts = summary["counts"]
    assert counts["abandoned"] > 0
    assert sum(counts[name] for name in ("completed", "refused", "abandoned", "unfinished")) == 12
    assert "clients gave up on" in headline(summary, {"pools": []})
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "abandoned by their clients" in page


def test_a_client_may_give_up_while_its_request_waits_at_the_router():
    """Dynamo's queue lets one prompt at a time through: who waits there too long is never scheduled."""
    router = {"kind": "dynamo_kv", "router_queue_threshold": 0}
    it = deployment(ENGINES[0], 12, give_up_s=0.001, router=router)
    result = it.simulate()
    assert np.count_nonzero(result.status == Status.COMPLETED) == 0
    assert np.all(result.status == result.status[0]), "they all gave up alike"
    assert np.count_nonzero(result.first_scheduled_ns >= 0) == 1, "the rest never reached the engine"


BATCHED = [
    {"preset": "vllm-0.33", "max_num_seqs": 32},
    {"preset": "vllm-0.15", "max_num_seqs": 32},
    {"preset": "sglang-0.5.23", "max_running_requests": 32},
]


@pytest.mark.parametrize("engine", BATCHED, ids=[engine["preset"] for engine in BATCHED])
@pytest.mark.parametrize("give_up_s", [0.004, 0.05, 0.31, 0.6])
@pytest.mark.parametrize("fast_forward", [True, False])
def test_a_client_that_has_gone_is_shown_nothing(engine, give_up_s, fast_forward):
    """Every token that was shown, but the first of a request, makes one gap; a lost one makes none."""
    it = deployment(engine, 96, give_up_s=give_up_s, fast_forward=fast_forward)
    found = it.simulate()
    gone = found.status == Status.ABANDONED
    assert gone.any()
    assert (found.first_token_ns[gone] <= found.arrival_ns[gone] + round(give_up_s * 1e9)).all()
    done = ~gone
    assert (found.last_token_ns[done] <= found.arrival_ns[done] + round(give_up_s * 1e9)).all()
    shown = int(found.output_tokens.sum()) - found.wasted_tokens
    assert int(found.gaps.count.sum()) == shown - int((found.first_token_ns >= 0).sum())
    assert 0 <= found.wasted_tokens <= 2 * int(gone.sum()), "at most the step in flight and the next"
    counts = it.summarize(found).counts
    assert counts.reasons == {f"client gave up after {give_up_s:g} s": int(gone.sum())}
    assert counts.wasted_tokens == found.wasted_tokens
