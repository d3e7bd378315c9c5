"""Synthetic workloads against their closed forms, and the independence of their parts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from simserve.errors import ScenarioError
from simserve.workload import SyntheticSpec, stats, synthesize

BASE: dict[str, Any] = {
    "requests": 20_000,
    "arrivals": {"kind": "poisson", "rate_per_s": 5},
    "prompt_tokens": {"kind": "constant", "value": 100},
    "output_tokens": {"kind": "constant", "value": 10},
}


def spec(**changes: Any) -> SyntheticSpec:
    return SyntheticSpec.model_validate({**BASE, **changes})


def test_poisson() -> None:
    arrivals = stats(synthesize(spec(), 1)).arrivals
    assert arrivals.rate_per_s == pytest.approx(5, rel=0.03)
    assert arrivals.gap_cv == pytest.approx(1, abs=0.03)
    for window in arrivals.windows:
        windows = arrivals.duration_s // window.window_s
        assert window.idc == pytest.approx(1, abs=4 * math.sqrt(2 / windows))  # four standard deviations


def test_gamma_and_constant() -> None:
    arrivals = stats(synthesize(spec(arrivals={"kind": "gamma", "rate_per_s": 5, "cv": 3}), 1)).arrivals
    assert arrivals.gap_cv == pytest.approx(3, rel=0.05)
    assert arrivals.rate_per_s == pytest.approx(5, rel=0.08)
    even = synthesize(spec(arrivals={"kind": "constant", "rate_per_s": 4}, requests=3), 1)
    assert even.arrival_ns.tolist() == [0, 250_000_000, 500_000_000]


def test_bursts_have_the_dispersion_of_their_theory() -> None:
    """Two-state modulated Poisson: IDC(w) = 1 + 2v/(m k) (1 - (1 - exp(-k w))/(k w)), k = 1/on + 1/off."""
    on, off, low, high = 10.0, 30.0, 1.0, 9.0
    arrivals = {
        "kind": "bursts",
        "rate_per_s": low,
        "burst_rate_per_s": high,
        "mean_on_s": on,
        "mean_off_s": off,
    }
    found = stats(synthesize(spec(arrivals=arrivals, requests=150_000), 2)).arrivals
    p = on / (on + off)
    mean, variance, k = low + p * (high - low), p * (1 - p) * (high - low) ** 2, 1 / on + 1 / off
    assert found.rate_per_s == pytest.approx(mean, rel=0.05)
    for window in found.windows:
        kw = k * window.window_s
        theory = 1 + 2 * variance / (mean * k) * (1 - (1 - math.exp(-kw)) / kw)
        assert window.idc == pytest.approx(theory, rel=0.12)


def test_duration_instead_of_requests() -> None:
    trace = synthesize(spec(requests=None, duration_s=1000), 4)
    assert len(trace) == pytest.approx(5000, abs=4 * 71)
    assert trace.arrival_ns[-1] < 1000 * 10**9
    longer = synthesize(spec(requests=None, duration_s=2000), 4)
    assert (longer.arrival_ns[: len(trace)] == trace.arrival_ns).all()


LENGTHS = [
    ({"kind": "lognormal", "p50": 1000, "p90": 3000}, {"p50": 1000, "p90": 3000}),
    ({"kind": "lognormal", "p50": 1000, "mean": 1500}, {"p50": 1000, "mean": 1500}),
    ({"kind": "exponential", "mean": 500}, {"mean": 500, "p50": 500 * math.log(2)}),
    ({"kind": "uniform", "min": 100, "max": 300}, {"mean": 200, "p90": 280}),
    ({"kind": "quantiles", "points": [[0, 10], [0.5, 100], [0.9, 400], [1, 1000]]}, {"p50": 100, "p90": 400}),
]


@pytest.mark.parametrize(("lengths", "figures"), LENGTHS)
def test_lengths_have_the_figures_that_define_them(lengths: dict, figures: dict) -> None:
    found = stats(synthesize(spec(prompt_tokens=lengths), 3)).prompt_tokens
    for name, value in figures.items():
        assert getattr(found, name) == pytest.approx(value, rel=0.04)


def test_truncation_redraws_and_never_piles_up() -> None:
    lengths = {"kind": "exponential", "mean": 500, "min": 100, "max": 600}
    tokens = synthesize(spec(prompt_tokens=lengths), 3).prompt_tokens
    assert tokens.min() >= 100
    assert tokens.max() <= 600
    counts = np.bincount(tokens, minlength=601)
    assert counts[600] < 3 * counts[590:599].mean()
    # Memoryless above 100, cut at 600: mean = 100 + 500 - 500 r/(1 - r) with r = exp(-1).
    r = math.exp(-1)
    assert tokens.mean() == pytest.approx(600 - 500 * r / (1 - r), rel=0.01)


def test_unreachable_truncation_is_an_error() -> None:
    with pytest.raises(ScenarioError, match="widen min and max"):
        synthesize(spec(prompt_tokens={"kind": "exponential", "mean": 1, "min": 5000}), 3)


def test_same_seed_same_trace_other_seed_another(assert_same: Callable) -> None:
    lengths = {"kind": "exponential", "mean": 50}
    a, b = (synthesize(spec(prompt_tokens=lengths), 9) for _ in range(2))
    assert_same(a, b)
    assert synthesize(spec(prompt_tokens=lengths), 10).prompt_tokens.tolist() != a.prompt_tokens.tolist()


def test_parts_draw_from_streams_of_their_own() -> None:
    """Common random numbers: changing one part leaves the draws of the others."""
    plain = synthesize(spec(output_tokens={"kind": "exponential", "mean": 50}), 9)
    longer = synthesize(
        spec(
            prompt_tokens={"kind": "lognormal", "p50": 900, "p90": 2000},
            output_tokens={"kind": "exponential", "mean": 50},
            shared_prefixes={"groups": [{"tokens": 64}]},
        ),
        9,
    )
    assert (plain.arrival_ns == longer.arrival_ns).all()
    assert (plain.output_tokens == longer.output_tokens).all()


def sessions(**changes: Any) -> SyntheticSpec:
    chat = {
        "turns": {"kind": "constant", "value": 3},
        "think_s": {"kind": "exponential", "mean": 20},
    }
    return spec(requests=3000, sessions=chat | changes.pop("sessions", {}), **changes)


def test_sessions_grow_by_prompt_and_answer() -> None:
    # Far apart, so that hardly any session is cut by the number of requests.
    trace = synthesize(sessions(arrivals={"kind": "poisson", "rate_per_s": 0.05}), 1)
    assert trace.session is not None
    assert trace.think_ns is not None
    whole = [s for s in range(int(trace.session.max()) + 1) if (trace.session == s).sum() == 3]
    assert len(whole) > 800
    for s in whole[:50]:
        assert trace.prompt_tokens[trace.session == s].tolist() == [100, 210, 320]
        assert trace.think_ns[trace.session == s][0] == 0
    assert trace.think_ns[trace.think_ns > 0].mean() == pytest.approx(20e9, rel=0.1)


def test_sessions_find_their_history_in_the_cache() -> None:
    """Blocks of 16: of the prompts 100, 210, 320 the last two find 96 and 208 tokens of the turn before."""
    trace = synthesize(sessions(arrivals={"kind": "constant", "rate_per_s": 0.001}), 1)
    prefix = stats(trace).prefix
    assert prefix is not None
    assert prefix.token_hit_rate == pytest.approx((96 + 208) / (100 + 210 + 320), rel=0.002)


def test_sessions_without_history_share_nothing() -> None:
    trace = synthesize(sessions(sessions={"history": "none"}), 1)
    assert set(trace.prompt_tokens.tolist()) == {100}
    assert trace.block_ids is None


def test_open_loop_sessions_are_independent_rows() -> None:
    trace = synthesize(sessions(sessions={"loop": "open"}), 1)
    assert trace.session is None
    assert trace.block_ids is not None
    assert set(trace.prompt_tokens.tolist()) == {100, 210, 320}


def test_context_limit_ends_sessions() -> None:
    trace = synthesize(sessions(sessions={"max_context_tokens": 230}), 1)
    assert (trace.prompt_tokens + trace.output_tokens).max() == 220
    with pytest.raises(ScenarioError, match="max_context_tokens"):
        synthesize(sessions(sessions={"max_context_tokens": 50}), 1)


def test_shared_prefixes_are_found_by_the_cache() -> None:
    """Prompts of 160 + 100 tokens in blocks of 16: all but the first of each group find 160 of 260."""
    groups = [{"tokens": 160, "weight": 3}, {"tokens": 160, "weight": 1}]
    trace = synthesize(spec(shared_prefixes={"groups": groups}), 1)
    prefix = stats(trace).prefix
    assert prefix is not None
    assert prefix.requests_with_hit == len(trace) - 2
    assert prefix.token_hit_rate == pytest.approx(160 / 260, rel=1e-3)
    assert trace.block_offsets is not None
    assert trace.block_ids is not None
    firsts = np.bincount(trace.block_ids[trace.block_offsets[:-1]])
    assert firsts[firsts > 0].max() / len(trace) == pytest.approx(0.75, abs=0.02)
    within = synthesize(spec(shared_prefixes={"groups": groups, "counted": "within"}), 1)
    assert set(within.prompt_tokens.tolist()) == {100}
    assert stats(within).prefix.requests_fully_hit == 0  # type: ignore[union-attr]


def test_revisits() -> None:
    revisits = {
        "share": 0.5,
        "fraction": {"kind": "constant", "value": 0.48},
        "age_s": {"kind": "constant", "value": 10},
    }
    prefix = stats(synthesize(spec(revisits=revisits), 1)).prefix
    assert prefix is not None
    # 3 blocks of 16 of 100 tokens, for half of the requests.
    assert prefix.token_hit_rate == pytest.approx(0.5 * 0.48, rel=0.05)
    greedy = revisits | {"fraction": {"kind": "constant", "value": 2}}
    with pytest.raises(ScenarioError, match="at most 1"):
        synthesize(spec(revisits=greedy), 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"duration_s": 5}, "exactly one of requests and duration_s"),
        ({"requests": None}, "exactly one of requests and duration_s"),
        ({"arrivals": {"kind": "poisson", "rate_per_s": 0}}, "greater than 0"),
        ({"arrivals": {"kind": "weibull", "rate_per_s": 1}}, "'poisson', 'gamma', 'constant', 'bursts'"),
        ({"prompt_tokens": {"kind": "lognormal", "p50": 10}}, "exactly one of p90 and mean"),
        ({"prompt_tokens": {"kind": "lognormal", "p50": 10, "p90": 5}}, "not below p50"),
        ({"prompt_tokens": {"kind": "uniform", "min": 10, "max": 5}}, "above max"),
        ({"prompt_tokens": {"kind": "exponential", "mean": 3, "min": 10, "max": 5}}, "above max"),
        ({"prompt_tokens": {"kind": "quantiles", "points": [[0, 1], [0.5, 2]]}}, "probability 1"),
        ({"prompt_tokens": {"kind": "quantiles", "points": [[0, 9], [1, 2]]}}, "not descend"),
        ({"prompt_tokens": {"kind": "exponential", "mean": 3, "maximum": 5}}, "Extra inputs"),
        ({"prompt_tokens": {"kind": "constant", "value": float("nan")}}, "finite"),
        ({"shared_prefixes": {"groups": []}}, "at least 1"),
    ],
)
def test_wrong_specifications(changes: dict, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        spec(**changes)


@pytest.mark.parametrize("value", [2000, 0.5])
def test_a_number_where_a_distribution_belongs(value: float) -> None:
    spec = {"requests": 1, "arrivals": {"kind": "constant", "rate_per_s": 1}, "prompt_tokens": value}
    with pytest.raises(ValueError, match=rf"{{kind: constant, value: {value}}}"):
        SyntheticSpec(**spec, output_tokens={"kind": "constant", "value": 1})  # type: ignore[arg-type]
