"""Collectives between two real processes on this machine, over gloo."""

from __future__ import annotations

import pytest

from simserve.profiler.distributed import Order, Ranks
from simserve.profiler.job import Job
from simserve.profiler.ops import OPS
from simserve.profiler.ops.collective import KINDS, Collective
from simserve.profiler.run import measure_case


@pytest.fixture(scope="module")
def ranks():
    running = Ranks(2, "cpu")
    yield running
    running.close()


@pytest.mark.parametrize("kind", KINDS)
def test_every_collective_is_right_and_timed(ranks: Ranks, kind: str) -> None:
    timing, error = ranks.measure(Order(kind, 1024, "fp32", 0.05))
    assert error == 0
    assert timing.n_samples >= 5
    assert 0 < timing.p10_us <= timing.median_us <= timing.p90_us


def test_what_a_rank_cannot_do_is_said(ranks: Ranks) -> None:
    with pytest.raises(RuntimeError):
        ranks.measure(Order("all_reduce", -2, "fp32", 0.05))
    timing, _ = ranks.measure(Order("all_reduce", 16, "fp32", 0.02))
    assert timing.median_us > 0


def test_a_row_of_the_table(ranks: Ranks) -> None:
    op = OPS["collective"]
    assert isinstance(op, Collective)
    made = Job.make("cpu", ["tiny"], ["collective"], [2], "", [], "cpu", 1)
    assert {case["coll"] for case in made.cases} == set(KINDS)
    assert {case["ranks"] for case in made.cases} == {2}
    op._ranks = ranks
    try:
        row = measure_case(made.cases[0], op, made.device, 0.05)
    finally:
        op._ranks = None
    assert row["status"] == "ok"
    assert row["key"]["impl"] == "gloo"
