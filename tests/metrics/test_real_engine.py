"""Metrics of real runs: the verdict around capacity, and that nothing is lost between engine and summary."""

from __future__ import annotations

import numpy as np
import pytest

from simserve.core import Result, Status
from simserve.deploy.build import run_scenario
from simserve.metrics import Summary, summarize
from simserve.scenario import Scenario

REQUESTS = 1500


def run(rate_per_s: float, requests: int = REQUESTS, **workload) -> tuple[Result, Summary]:
    """Poisson arrivals of 200 prompt and 20 to 80 output tokens on one GPU that takes 16 sequences."""
    scenario = Scenario.model_validate(
        {
            "name": "capacity",
            "model": "llama-3.1-8b",
            "engine": {"preset": "vllm-0.33", "max_num_seqs": 16},
            "workload": {
                "synthetic": {
                    "requests": requests,
                    "arrivals": {"kind": "poisson", "rate_per_s": rate_per_s},
                    "prompt_tokens": {"kind": "constant", "value": 200},
                    "output_tokens": {"kind": "uniform", "min": 20, "max": 80},
                },
                **workload,
            },
            "pools": [{"name": "all", "gpu": "h100_sxm"}],
            "seed": 1,
        }
    )
    result = run_scenario(scenario)
    return result, summarize(result, closed_loop="closed_loop" in workload)


@pytest.fixture(scope="module")
def capacity_per_s() -> float:
    """Requests/s that the GPU completes when 32 clients never let its 16 places run empty."""
    _, summary = run(1.0, closed_loop={"concurrency": 32})
    assert summary.stability.verdict == "not judged"
    assert summary.steady.requests_per_s is not None
    return summary.steady.requests_per_s


@pytest.mark.parametrize(("load", "verdict"), [(0.7, "stable"), (1.3, "unstable")])
def test_verdict_around_capacity(capacity_per_s, load, verdict):
    _, summary = run(load * capacity_per_s)
    assert summary.stability.verdict == verdict, summary.stability.reason


def test_overload_shows_a_backlog_of_the_size_that_the_load_implies(capacity_per_s):
    """At a load of 1.3 the backlog is 30 % of what was scheduled, give or take the randomness of arrivals."""
    _, summary = run(1.3 * capacity_per_s)
    assert summary.stability.backlog_share == pytest.approx(0.3, abs=0.08)


def test_steady_rate_of_an_overloaded_run_is_the_capacity(capacity_per_s):
    """What completes in the window, not what arrives in it."""
    _, summary = run(1.6 * capacity_per_s)
    assert summary.steady.requests_per_s == pytest.approx(capacity_per_s, rel=0.03)


def test_counts_gaps_and_work_agree_with_the_columns(capacity_per_s):
    result, summary = run(0.7 * capacity_per_s, requests=400)
    counts, whole = summary.counts, summary.whole
    assert counts.completed == counts.requests == 400
    assert whole.itl_ms.count == int((result.output_tokens - 1).sum()), "n - 1 gaps per request"
    decode_ns = int((result.last_token_ns - result.first_token_ns).sum())
    assert whole.itl_ms.mean == pytest.approx(decode_ns / whole.itl_ms.count / 1e6, rel=1e-12)
    use = summary.replicas[0]
    assert use.prefill_tokens == int(result.prompt_tokens.sum())
    assert use.decode_tokens == int(result.output_tokens.sum()) - 400, "one token each from prefill"
    assert use.mfu == use.hfu
    for share in (use.busy, use.mfu, use.mbu, use.kv_use_mean, use.kv_use_peak):
        assert share is not None
        assert 0 < share <= 1
    assert sum(summary.provenance.values()) == pytest.approx(1)
    assert (result.status == Status.COMPLETED).all()
    assert np.all(result.arrival_ns <= result.first_scheduled_ns)
