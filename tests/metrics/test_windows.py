"""Rates, the steady window and SLOs on literal runs."""

from __future__ import annotations

import numpy as np
import pytest
from results_by_hand import MS, S, gaps, replica, result, timeline

from simserve.core import Status
from simserve.errors import ScenarioError
from simserve.metrics import Slo, summarize


def ten_requests(**columns):
    """One a second, each done after 500 ms with 2 tokens; the 1st and the 10th are slow."""
    arrival = np.arange(10) * S
    took = np.full(10, 500 * MS)
    took[[0, 9]] = 900 * MS
    base = {
        "arrival_ns": arrival,
        "first_token_ns": arrival + took // 2,
        "last_token_ns": arrival + took,
        "output_tokens": np.full(10, 2),
    }
    return result(**base | columns)


def test_rates_are_over_the_run_from_first_arrival_to_last_event():
    whole = summarize(ten_requests()).whole
    assert whole.duration_s == pytest.approx(9.9)
    assert whole.requests_per_s == pytest.approx(10 / 9.9)
    assert whole.output_tokens_per_s == pytest.approx(20 / 9.9)
    assert whole.total_tokens_per_s == pytest.approx(120 / 9.9)


def test_steady_window_leaves_out_first_and_last_tenth_but_keeps_their_load():
    summary = summarize(ten_requests(steady_gaps=gaps([(250 * MS, 8)])))
    steady = summary.steady
    assert summary.steady_window == (1, 9)
    assert (steady.requests, steady.start_s, steady.end_s) == (8, 1, 9)
    assert steady.e2e_ms.max == 500
    assert summary.whole.e2e_ms.max == 900
    assert steady.requests_per_s == pytest.approx(8 / 8), "8 completions between 1 s and 9 s"
    assert steady.itl_ms.count == 8


def test_steady_window_goes_by_arrival_rank_not_by_row():
    """Rows of a closed loop need not be in arrival order: the last row arrives first here."""
    arrival = np.arange(10)[::-1] * S
    summary = summarize(
        result(arrival_ns=arrival, last_token_ns=arrival + 5 * MS, first_token_ns=arrival + 5 * MS)
    )
    assert summary.steady.start_s == 1
    assert summary.steady.requests == 8


def test_slo_needs_every_limit_and_says_which_was_missed():
    run = result(
        arrival_ns=[0, 0, 0, 0, 0],
        first_token_ns=[100 * MS, 300 * MS, 100 * MS, -1, 100 * MS],
        last_token_ns=[200 * MS, 400 * MS, 900 * MS, -1, 200 * MS],
        output_tokens=[3, 3, 3, 0, 3],
        status=[0, 0, 0, Status.REFUSED, Status.UNFINISHED],
        end_ns=2 * S,
    )
    slo = summarize(run, Slo(ttft_ms=200, tpot_ms=50)).whole.slo
    assert slo is not None
    assert slo.good_requests == 1
    assert slo.attainment == 1 / 5
    assert slo.goodput_requests_per_s == 1 / 2
    assert slo.missed == {"ttft_ms": 1, "tpot_ms": 1}


def test_a_request_of_one_token_cannot_miss_tpot_and_a_value_on_the_limit_meets_it():
    run = result(arrival_ns=[0], first_token_ns=[200 * MS], output_tokens=[1])
    slo = summarize(run, Slo(ttft_ms=200, tpot_ms=0.001)).whole.slo
    assert slo is not None
    assert slo.attainment == 1


def test_itl_limit_is_a_share_of_gaps_and_does_not_touch_goodput():
    run = ten_requests(gaps=gaps([(10 * MS, 9), (90 * MS, 1)]))
    slo = summarize(run, Slo(itl_ms=50)).whole.slo
    assert slo is not None
    assert (slo.attainment, slo.itl_within_share) == (1, 0.9)


@pytest.mark.parametrize("limit", [0, -5, float("nan"), float("inf")])
def test_limits_must_be_positive(limit):
    with pytest.raises(ScenarioError, match=r"slo\.tpot_ms"):
        Slo(tpot_ms=limit)


def test_hit_rate_counts_requests_that_were_admitted():
    run = result(
        arrival_ns=[0, 0, 0],
        prompt_tokens=[100, 300, 500],
        cached_tokens=[0, 100, 0],
        first_scheduled_ns=[0, 0, -1],
        status=[0, 0, Status.REFUSED],
    )
    assert summarize(run).whole.hit_rate == 100 / 400


def test_kv_use_is_time_weighted_and_idle_time_counts_as_empty():
    """100 blocks; 50 held for 2 of 10 s, 100 for 1 s: 20 % on average; the steady window sees less."""
    line = timeline([(0, 2 * S, 1, 0, 50, 0, 0, 1), (5 * S, 6 * S, 1, 0, 100, 0, 0, 1)])
    run = ten_requests(replicas=(replica(timeline=line),), end_ns=10 * S)
    summary = summarize(run)
    assert summary.whole.kv_use_mean == pytest.approx((0.5 * 2 + 1.0 * 1) / 10)
    assert summary.steady.kv_use_mean == pytest.approx((0.5 * 1 + 1.0 * 1) / 8)
    assert summary.replicas[0].kv_use_peak == 1.0


def test_rows_of_pipeline_microbatches_overlap_without_counting_twice():
    line = timeline([(0, 10 * S, 1, 0, 40, 0, 0, 1), (0, 10 * S, 1, 0, 40, 0, 0, 1)])
    run = ten_requests(replicas=(replica(timeline=line),), end_ns=10 * S)
    assert summarize(run).whole.kv_use_mean == pytest.approx(0.4)
