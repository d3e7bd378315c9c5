"""The series over time, and their bands over seeds, against values worked out by hand."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from simserve.metrics.columns import ramps
from simserve.metrics.replications import QUANTILES, band_table
from simserve.metrics.time_series import Place, course, edges_of

S = 1_000_000_000
EDGES = np.arange(0.0, 11.0) * S
"""Ten bins of a second."""


def requests(**columns: list[int]) -> pa.Table:
    """Two requests: one of 8 s whose prompt was half cached, one that was refused."""
    table = {
        "arrival_ns": [0, 5 * S],
        "first_scheduled_ns": [1 * S, None],
        "first_token_ns": [2 * S, None],
        "last_token_ns": [8 * S, None],
        "prompt_tokens": [100, 40],
        "output_tokens": [60, 0],
        "cached_tokens": [50, None],
        "status": pa.array(["completed", "refused"]).dictionary_encode(),
        **columns,
    }
    return pa.table(table)


def timeline(work: dict[str, list[float]]) -> pa.Table:
    """One row of a second per replica and figure: prompt tokens computed in one step."""
    rows = [(name, i, tokens) for name, values in work.items() for i, tokens in enumerate(values)]
    names, starts, tokens = zip(*rows, strict=True) if rows else ((), (), ())
    return pa.table(
        {
            "replica": pa.array(names).dictionary_encode(),
            "start_ns": [i * S for i in starts],
            "end_ns": [(i + 1) * S for i in starts],
            "kv_used_blocks": [t / 10 for t in tokens],
            "prefill_tokens": list(tokens),
            "decode_tokens": [0.0] * len(tokens),
            "steps": [1.0] * len(tokens),
        }
    )


PLACES = [Place("a-0", "a", 100), Place("a-1", "a", 100)]
WORK = {"a-0": [300.0, 100.0], "a-1": [100.0, 100.0]}


@pytest.fixture
def series() -> dict[str, np.ndarray]:
    return course(requests(), timeline(WORK), PLACES, EDGES, 10 * S)


def test_requests_wait_then_run_then_are_gone(series) -> None:
    assert series["waiting"].tolist() == [1] + [0] * 9  # the refused one does not wait
    assert series["running"].tolist() == [0] + [1] * 7 + [0] * 2
    assert series["arrivals_per_s"].tolist() == [1, 0, 0, 0, 0, 1, 0, 0, 0, 0]
    assert series["completions_per_s"][8] == 1


def test_context_is_prompt_from_the_start_and_an_answer_that_grows(series) -> None:
    assert series["context.cached"].tolist() == pytest.approx([0] + [50] * 7 + [0] * 2)
    assert series["context.prompt"].tolist() == pytest.approx([0] + [50] * 7 + [0] * 2)
    assert series["context.answer"].tolist() == pytest.approx([0, 0, 5, 15, 25, 35, 45, 55, 0, 0])


def test_hits_belong_to_the_time_of_scheduling(series) -> None:
    assert series["hit_rate"][1] == 0.5
    assert np.isnan(series["hit_rate"][[0, *range(2, 10)]]).all()


def test_pools_say_mean_fullest_and_imbalance(series) -> None:
    assert series["kv_mean.a"][:3].tolist() == pytest.approx([0.2, 0.1, 0])
    assert series["kv_fullest.a"][:2].tolist() == pytest.approx([0.3, 0.1])
    assert series["imbalance.a"][:2].tolist() == pytest.approx([1.5, 1])
    assert np.isnan(series["imbalance.a"][2:]).all()  # nothing is done: nothing is uneven
    assert series["prefill_per_step"][:3].tolist() == pytest.approx([200, 100, 0])


def test_a_replica_without_a_step_counts_as_idle() -> None:
    found = course(requests(), timeline({"a-0": [300.0]}), PLACES, EDGES, 10 * S)
    assert found["kv_mean.a"][0] == pytest.approx(0.15)
    assert found["imbalance.a"][0] == pytest.approx(2)


def test_prompts_of_a_split_wait_for_room_then_move() -> None:
    split = requests(prefill_end_ns=[2 * S, None], room_ns=[4 * S, None], transfer_end_ns=[5 * S, None])
    found = course(split, timeline(WORK), PLACES, EDGES, 10 * S)
    assert found["transfer.waiting"].tolist() == [0, 0, 1, 1] + [0] * 6
    assert found["transfer.moving"].tolist() == [0] * 4 + [1] + [0] * 5
    early = requests(prefill_end_ns=[2 * S, None], room_ns=[0, None], transfer_end_ns=[5 * S, None])
    found = course(early, timeline(WORK), PLACES, EDGES, 10 * S)
    assert found["transfer.waiting"].sum() == 0
    assert found["transfer.moving"].sum() == 3  # from the end of the prompt, not from when there was room


def test_ramps_against_a_sum_of_small_steps() -> None:
    rng = np.random.default_rng(0)
    start = rng.integers(0, 1000, 50)
    end, final = start + rng.integers(1, 400, 50), rng.uniform(1, 9, 50)
    edges = np.linspace(100, 1200, 12)
    time = np.arange(100, 1200, 0.01) + 0.005
    level = np.zeros(len(time))
    for a, b, most in zip(start, end, final, strict=True):
        level += np.where((time >= a) & (time < b), (time - a) / (b - a) * most, 0)
    summed = level.reshape(11, -1).sum(axis=1) * 0.01
    assert ramps(start, end, final, edges) == pytest.approx(summed, abs=1e-3)


def test_bands_are_students_intervals_at_each_place() -> None:
    """Of 1, 2 and 6: mean 3, deviation sqrt(7), t(0.975, 2) = 4.3027; below 0 there is nothing."""
    edges = edges_of(0, 3 * S, 3)
    runs = [{"running": np.array([value, 5.0, np.nan])} for value in (1.0, 2.0, 6.0)]
    rows = band_table(runs, edges, 0.95).to_pylist()
    half = 4.302653 * 7**0.5 / 3**0.5
    assert [row["place"] for row in rows] == [0.5, 1.5, 2.5]
    assert (rows[0]["mean"], rows[0]["low"]) == (3, 0)
    assert rows[0]["high"] == pytest.approx(3 + half)
    assert (rows[1]["low"], rows[1]["high"]) == (5, 5)
    assert rows[2]["mean"] is None


def test_distributions_are_averaged_as_shares_up_to_a_latency() -> None:
    """Uniform on 0..1 and on 1..2: half of all values lie below 1, whichever way one looks."""
    runs = [{"ttft_ms": QUANTILES}, {"ttft_ms": 1 + QUANTILES}]
    table = band_table(runs, edges_of(0, S, 2), 0.95)
    place, mean = table["place"].to_numpy(), table["mean"].to_numpy()
    assert np.interp([0.5, 1.0, 1.5], place, mean) == pytest.approx([0.25, 0.5, 0.75], abs=0.01)
    assert table["low"].to_numpy().min() >= 0
    assert table["high"].to_numpy().max() <= 1


def test_a_curve_that_one_run_lacks_is_left_out() -> None:
    both = {"running": np.zeros(2), "waiting": np.zeros(2)}
    table = band_table([both, {"running": np.ones(2)}], edges_of(0, S, 2), 0.95)
    assert set(table["curve"].to_pylist()) == {"running"}


def test_a_client_that_gave_up_counts_until_its_request_is_dropped() -> None:
    """The first is scheduled at 1 s and dropped at 4 s; the second waits from 5 s on and leaves at 7 s."""
    gone = pa.array(["abandoned", "abandoned"]).dictionary_encode()
    table = requests(last_token_ns=[None, None], status=gone, dropped_ns=[4 * S, 7 * S])
    series = course(table, timeline({}), [], EDGES, 10 * S)
    assert series["running"] == pytest.approx([0, 1, 1, 1, 0, 0, 0, 0, 0, 0])
    assert series["waiting"] == pytest.approx([1, 0, 0, 0, 0, 1, 1, 0, 0, 0])
    assert series["context.prompt"].sum() == pytest.approx(3 * 50)
