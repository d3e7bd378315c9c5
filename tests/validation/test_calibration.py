"""Calibration finds constants that are known, always holds something out, refuses what runs cannot tell."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from simserve.engines.overheads import read_overhead
from simserve.errors import ScenarioError
from simserve.validation.calibration import calibrate
from simserve.validation.measured_replay import replay
from simserve.validation.measured_runs import MeasuredRun

TRUE_CLIENT_US = 5000.0
N = 80


def run(seed: int, client_us: float, folder) -> MeasuredRun:
    """Return a run 'measured' on the simulator itself, with a constant that the fit does not know."""
    draw = np.random.default_rng(seed)
    facts = dict.fromkeys(
        [
            "max_num_seqs",
            "max_num_batched_tokens",
            "block_size",
            "max_model_len",
            "gpu_kv_blocks",
            "system_prompt_tokens",
            "prompts_per_group",
        ],
        "",
    )
    facts |= {"engine": "vLLM 0.15.1", "gpu": "H100-SXM-80GB", "model": "meta-llama/Llama-3.1-8B"}
    facts |= {"weights_dtype": "bf16", "tp": "1", "dp": "1", "ep": "1", "overloaded": "False"}
    blank = MeasuredRun(
        id=f"run-{seed}",
        facts=facts,
        stage=np.zeros(N, np.int64),
        arrival_ns=np.cumsum(draw.exponential(2e8, N)).astype(np.int64),
        prompt_tokens=draw.integers(100, 900, N),
        output_tokens=draw.integers(10, 120, N),
        prompt_id=np.arange(N),
        ttft_s=np.zeros(N),
        e2e_s=np.zeros(N),
        failed=np.zeros(N, np.bool_),
        steps_file=None,
    )
    path = folder / f"truth-{seed}.yaml"
    path.write_text(f"base: vllm\nclient_us: {client_us}\n")
    seen = replay(blank, str(path))
    return replace(blank, ttft_s=seen.ttft_s, e2e_s=seen.e2e_s)


def test_a_known_constant_is_found_from_one_run_and_half_of_it_held_out(tmp_path):
    found = calibrate([run(1, TRUE_CLIENT_US, tmp_path)], ["client_us"])
    assert found.values["client_us"] == pytest.approx(TRUE_CLIENT_US, rel=0.01)
    assert set(found.held_out) == {"stage 0", "stage 1"}
    assert max(found.held_out.values()) < 0.01
    assert np.abs(found.after).max() < 0.005 < np.abs(found.before).max()
    written = tmp_path / "fitted.yaml"
    written.write_text(found.yaml())
    assert read_overhead(written).client_us == pytest.approx(TRUE_CLIENT_US, rel=0.01)


def test_runs_that_disagree_show_it_where_they_are_held_out(tmp_path):
    runs = [run(1, 3000.0, tmp_path), run(2, 9000.0, tmp_path)]
    found = calibrate(runs, ["client_us"])
    assert set(found.held_out) == {"run-1", "run-2"}
    assert min(found.held_out.values()) > 0.1
    assert 3000 < found.values["client_us"] < 9000
    assert found.alone["run-1"]["client_us"] == pytest.approx(3000, rel=0.02)
    assert found.alone["run-2"]["client_us"] == pytest.approx(9000, rel=0.02)


def test_more_constants_than_a_run_can_tell_are_refused(tmp_path):
    one = run(1, TRUE_CLIENT_US, tmp_path)
    with pytest.raises(ScenarioError, match="at least two per constant"):
        calibrate([one], ["client_us", "gap_us", "step_us"])
    with pytest.raises(ScenarioError, match=r"client_ms.*did you mean"):
        calibrate([one], ["client_ms"])
