"""Errors against measured runs stay within what docs/fidelity.md states (short parts of the runs)."""

from __future__ import annotations

import pytest

from simserve.paths import data_dir
from simserve.validation.measured import binned_steps, compare
from simserve.validation.measured_replay import deployment_of, replay
from simserve.validation.measured_runs import read_runs
from tests.places import SHARED

PACK = SHARED / "validation" / "vllm_measured"
OVERHEAD = str(data_dir("scenarios") / "overheads" / "vllm-0.15.yaml")

pytestmark = pytest.mark.reference("validation/vllm_measured")


def test_a_run_that_was_not_fitted_is_within_the_bars():
    (run,) = read_runs(PACK, ["codellama-34b-tp2-roleplay"])
    metrics = compare(replay(run.head(1500), OVERHEAD))[0].metrics
    assert abs(metrics["e2e_mean"].error_pct) <= 4
    assert abs(metrics["tpot_mean"].error_pct) <= 4
    assert abs(metrics["ttft_mean"].error_pct) <= 12


def test_decode_steps_of_two_ranks_are_within_three_percent():
    (run,) = read_runs(PACK, ["codellama-34b-tp2-general"])
    bins = binned_steps(run, deployment_of(run).pools[0].latency)
    well_known = [one for one in bins if one.steps >= 20]
    assert len(well_known) >= 4
    assert all(abs(one.error_pct) <= 3 for one in well_known)
