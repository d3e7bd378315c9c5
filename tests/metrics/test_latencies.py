"""The definitions of latency, on requests whose time stamps are chosen by hand."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from results_by_hand import MS, S, gaps, result

from simserve.core import SplitColumns, SplitResult, Status
from simserve.metrics import summarize
from simserve.metrics.distribution import Distribution

NO_DATA = Distribution()


def one(**columns):
    return summarize(result(**{name: [value] for name, value in columns.items()})).whole


def test_each_latency_of_one_request():
    whole = one(
        arrival_ns=1 * S,
        first_scheduled_ns=1 * S + 30 * MS,
        first_token_ns=1 * S + 50 * MS,
        last_token_ns=1 * S + 450 * MS,
        output_tokens=5,
    )
    assert whole.queueing_ms.mean == 30
    assert whole.ttft_ms.mean == 50
    assert whole.tpot_ms.mean == 400 / 4
    assert whole.e2e_ms.mean == 450
    assert whole.normalised_ms.mean == 450 / 5


def test_preempted_request_keeps_its_whole_wait_in_end_to_end_and_its_first_token():
    """B1: 100 ms to the first token, preempted for 2 s, last token 3 s after arrival."""
    whole = one(
        arrival_ns=5 * S,
        first_scheduled_ns=5 * S,
        first_token_ns=5 * S + 100 * MS,
        last_token_ns=8 * S,
        output_tokens=30,
        preemptions=1,
        requeued_ns=2 * S,
    )
    assert whole.e2e_ms.max == 3000
    assert whole.ttft_ms.max == 100
    assert whole.requeued_ms.max == 2000
    assert whole.queueing_ms.max == 0, "waiting again is not queueing"


def test_no_output_token_has_an_end_but_nothing_per_token():
    """B3: the prompt of 200 ms is computed and nothing is shown."""
    whole = one(arrival_ns=0, first_token_ns=-1, last_token_ns=200 * MS, output_tokens=0)
    assert whole.e2e_ms.mean == 200
    assert whole.completed == 1
    assert whole.ttft_ms == whole.tpot_ms == whole.itl_ms == whole.normalised_ms == NO_DATA


def test_one_output_token_has_ttft_equal_to_end_to_end_and_no_tpot():
    """B3, the other half."""
    whole = one(arrival_ns=0, first_token_ns=70 * MS, output_tokens=1)
    assert whole.ttft_ms.mean == whole.e2e_ms.mean == 70
    assert whole.tpot_ms == whole.itl_ms == NO_DATA


def test_ttft_counts_from_arrival_for_every_request_in_a_queue():
    """B6: ten requests at once, served one after another for 4 s each; service and queue are told apart."""
    starts = np.arange(10) * 4 * S
    whole = summarize(
        result(arrival_ns=np.zeros(10), first_scheduled_ns=starts, first_token_ns=starts + 4 * S)
    ).whole
    assert whole.ttft_ms.max == 40_000
    assert whole.ttft_ms.mean == 4000 * 5.5
    assert whole.queueing_ms.max == 36_000
    assert whole.ttft_ms.mean - (whole.queueing_ms.mean or 0) == 4000


def test_refused_and_unfinished_requests_have_no_latency_and_are_counted_with_reasons():
    summary = summarize(
        result(
            arrival_ns=[0, 1, 2, 3],
            first_scheduled_ns=[0, -1, 5, -1],
            first_token_ns=[10 * MS, -1, 12 * MS, -1],
            last_token_ns=[10 * MS, -1, 13 * MS, -1],
            status=[Status.COMPLETED, Status.REFUSED, Status.UNFINISHED, Status.UNFINISHED],
            reason=[1, 0, -1, 2],
            reasons=("longer than the cache", "cut at the model's length", "the run ended"),
        )
    )
    counts = summary.counts
    assert (counts.completed, counts.refused, counts.unfinished) == (1, 1, 2)
    assert counts.completed + counts.refused + counts.unfinished == counts.requests
    assert counts.reasons == {"longer than the cache": 1, "the run ended": 1}
    assert counts.cut == {"cut at the model's length": 1}
    assert summary.whole.e2e_ms.count == summary.whole.ttft_ms.count == 1


def test_itl_is_pooled_over_gaps_while_tpot_is_over_requests():
    """A request of 3 tokens with gaps 10, 30 and one of 101 tokens with gaps of 50: means differ."""
    summary = summarize(
        result(
            arrival_ns=[0, 0],
            first_token_ns=[0, 0],
            last_token_ns=[40 * MS, 5000 * MS],
            output_tokens=[3, 101],
            gaps=gaps([(10 * MS, 1), (30 * MS, 1), (50 * MS, 100)]),
        )
    )
    assert summary.whole.tpot_ms.mean == pytest.approx((20 + 50) / 2)
    assert summary.whole.itl_ms.mean == pytest.approx(5040 / 102)
    assert summary.whole.itl_ms.count == 102
    assert summary.whole.itl_ms.p50 == 50


@pytest.mark.parametrize("n", [0, 1, 2])
def test_nothing_to_divide_by_is_no_data_never_infinity(n):
    """B8: no requests, or all at one instant with no duration; the summary is still valid JSON."""
    summary = summarize(result(arrival_ns=np.zeros(n)))
    assert summary.whole.requests_per_s is None
    assert summary.whole.kv_use_mean is None
    assert summary.replicas[0].mfu is None
    assert summary.replicas[0].tokens_per_step is None
    json.dumps(summary.to_dict(), allow_nan=False)


def test_nothing_completed_is_no_data():
    """B8: requests arrive, all refused."""
    refused = result(
        arrival_ns=[0, 1 * S],
        first_scheduled_ns=[-1, -1],
        first_token_ns=[-1, -1],
        last_token_ns=[-1, -1],
        output_tokens=[0, 0],
        status=[Status.REFUSED] * 2,
        end_ns=1 * S,
    )
    whole = summarize(refused).whole
    assert whole.requests_per_s == 0
    for name in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms", "queueing_ms", "normalised_ms"):
        assert dataclasses.astuple(getattr(whole, name)) == (0, *[None] * 6)


def test_waiting_on_the_decode_side_of_a_split_is_queueing():
    """20 ms before the prompt's 100; 300 for room; a transfer of 40 that is none; 500 for the first step."""
    stamps = [[0], [20 * MS], [120 * MS], [420 * MS], [460 * MS], [960 * MS], [1], [1], [0]]
    columns = SplitColumns(*(np.array(stamp) for stamp in stamps))
    run = result(
        arrival_ns=[0],
        first_scheduled_ns=[20 * MS],
        first_token_ns=[970 * MS],
        last_token_ns=[970 * MS],
        split=SplitResult(columns, (), "decode", False, 0, 0, 0),
    )
    whole = summarize(run).whole
    assert whole.queueing_ms.mean == 20 + 300 + 500
    assert whole.ttft_ms.mean == 970
