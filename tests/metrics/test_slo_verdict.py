"""The verdict on an SLO: limits, attainment and percentiles of the steady window, by closed forms."""

from __future__ import annotations

import numpy as np
import pytest
from results_by_hand import MS, S, gaps, result
from scipy import stats

from simserve.core import Status
from simserve.metrics import Slo, summarize
from simserve.metrics.slo_verdict import Evidence, SloVerdict, judge_slo
from simserve.metrics.targets import targets_of


def verdict(n: int, late: int, slo: Slo, ttft_ms: int = 100, **columns) -> SloVerdict:
    """The verdict on `n` requests a second apart; `late` of them, spread evenly, have a TTFT of 900 ms."""
    arrival = np.arange(n) * S
    ttft = np.full(n, ttft_ms * MS)
    if late:
        ttft[np.arange(late) * n // late + n // late // 2] = 900 * MS
    base = {
        "arrival_ns": arrival,
        "first_scheduled_ns": arrival,
        "first_token_ns": arrival + ttft,
        "last_token_ns": arrival + ttft + 100 * MS,
        "output_tokens": np.full(n, 2),
    }
    found = summarize(result(**base | columns), slo).slo_verdict
    assert found is not None
    return found


@pytest.mark.parametrize(("n", "outcome"), [(457, "inconclusive"), (458, "met")])
def test_requests_that_are_all_good_show_99_percent_from_368_on(n: int, outcome: str) -> None:
    """0.025 ** (1 / 368) = 0.99003 (Clopper and Pearson); the steady window is 80 % of the requests."""
    found = verdict(n, 0, Slo(ttft_ms=500))
    assert (found.outcome, found.kept, found.target) == (outcome, 1, 0.99)
    steady = n - 2 * (n // 10)
    assert found.checks[0].low == pytest.approx(0.025 ** (1 / steady), abs=1e-6)
    assert found.text.startswith("100 % of requests within TTFT ≤ 500 ms (target: 99 %")
    assert ("at least 368 in the steady window" in found.text) == (outcome == "inconclusive")


@pytest.mark.parametrize(("late", "outcome"), [(10, "met"), (50, "inconclusive"), (100, "missed")])
def test_the_interval_must_lie_on_one_side_of_the_target(late: int, outcome: str) -> None:
    """Of 1,000 requests 800 are steady, and 800 * late / 1,000 of these are late."""
    found = verdict(1000, late, Slo(ttft_ms=500, attainment=0.95))
    (check,) = found.checks
    late = late * 800 // 1000
    exact = stats.binomtest(800 - late, 800).proportion_ci(0.95)
    assert (check.low, check.high) == pytest.approx((exact.low, exact.high), abs=1e-4)
    assert (found.outcome, found.kept) == (outcome, pytest.approx(1 - late / 800))


def test_limits_that_all_meet_do_not_hide_a_percentile_that_is_missed() -> None:
    """tpot 100 ms is met by everybody, p99 of TTFT is 194 ms and 10 ms are asked for."""
    slo = Slo(tpot_ms=100, percentiles={"ttft_ms": {"p99": 10}})
    found = verdict(1000, 0, slo, ttft_ms=194)
    assert found.outcome == "missed"
    assert (found.kept, found.target) == (0, 0.99), "of the target with the least to spare"
    first, second = found.text.split("; ")
    assert first == "p99 of TTFT is 194 ms (target: 10 ms)"
    assert second == "100 % of requests within TPOT ≤ 100 ms (target: 99 %)"


@pytest.mark.parametrize(("limit", "outcome"), [(1000, "met"), (800, "missed")])
def test_percentiles_alone_are_an_slo(limit: float, outcome: str) -> None:
    found = verdict(1000, 300, Slo(percentiles={"ttft_ms": {"p90": limit}}))
    assert found.outcome == outcome
    assert found.text == f"p90 of TTFT is 900 ms (target: {limit} ms)"


def test_any_percentile_can_be_asked_for() -> None:
    found = verdict(4000, 40, Slo(percentiles={"ttft_ms": {"p97.5": 500}}))
    assert (found.outcome, found.checks[0].name) == ("met", "ttft_ms.p97.5")
    assert found.checks[0].value_ms == 100


def test_a_request_that_is_refused_is_within_no_percentile() -> None:
    """Every fifth is refused: p90 of those that were served is 100 ms, and 80 % were served."""
    status = np.where(np.arange(1000) % 5 == 0, int(Status.REFUSED), int(Status.COMPLETED))
    found = verdict(1000, 0, Slo(percentiles={"ttft_ms": {"p90": 500}}), status=status)
    assert found.outcome == "missed"
    assert found.checks[0].value_ms is None
    assert found.text == "80 % of requests within TTFT ≤ 500 ms (target: 90 %)"


def test_gaps_have_a_target_of_their_own() -> None:
    """900 of 1,000 gaps are 10 ms, the others 200 ms."""
    slow = {"steady_gaps": gaps([(10 * MS, 900), (200 * MS, 100)])}
    found = verdict(1000, 0, Slo(itl_ms=50, percentiles={"itl_ms": {"p90": 50, "p95": 50}}), **slow)
    assert found.outcome == "missed"
    assert {check.name: check.outcome for check in found.checks} == {
        "itl_ms": "missed",
        "itl_ms.p90": "inconclusive",
        "itl_ms.p95": "missed",
    }
    assert [check.value_ms for check in found.checks] == [None, 10, 200]


def test_a_load_that_is_not_carried_misses_whatever_the_requests_say() -> None:
    """Each waits 0.5 s longer than the one before, and the limit is far away."""
    arrival = np.arange(400) * S
    start = arrival + np.arange(400) * S // 2
    late = {"first_scheduled_ns": start, "first_token_ns": start + MS, "last_token_ns": start + S}
    found = verdict(400, 0, Slo(ttft_ms=1e6, attainment=0.5), **late)
    assert found.outcome == "missed"
    assert found.text.startswith("the load is not carried; 100 %")


def test_a_run_that_is_too_short_is_inconclusive_unless_it_misses() -> None:
    """Requests stay for 100 s and arrive for 40 s."""
    arrival = np.arange(400) * 100 * MS
    stays = {
        "arrival_ns": arrival,
        "first_scheduled_ns": arrival,
        "first_token_ns": arrival + 100 * MS,
        "last_token_ns": arrival + 100 * S,
    }
    found = verdict(400, 0, Slo(ttft_ms=500, attainment=0.9), **stays)
    assert found.outcome == "inconclusive"
    assert "too short to tell whether the load is carried, about 3,0" in found.text, "300 s of arrivals"
    assert verdict(400, 0, Slo(ttft_ms=50, attainment=0.9), **stays).outcome == "missed"


def test_several_runs_are_judged_together() -> None:
    """Each of three runs shows 97 %; all of them, as many requests again and again, 99 %."""
    targets = targets_of(Slo(ttft_ms=1))
    one = Evidence({"attainment": [[150, 150]]}, "stable", window=(10, 160))
    assert judge_slo(targets, [one]).outcome == "inconclusive"
    found = judge_slo(targets, [one] * 3)
    assert (found.outcome, found.checks[0].low) == ("met", pytest.approx(0.025 ** (1 / 450), abs=1e-6))
    assert found.basis == "the steady windows of 3 runs, requests 11 to 160 by arrival"
    other = Evidence({"attainment": [[150, 150]]}, "unstable")
    assert judge_slo(targets, [one, one, other]).outcome == "missed"


def test_without_an_slo_there_is_no_verdict() -> None:
    arrival = np.arange(10) * S
    assert summarize(result(arrival_ns=arrival)).slo_verdict is None
