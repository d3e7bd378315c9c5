"""Outcomes of load generators, as columns."""

from __future__ import annotations

import json

import pytest

from simserve.errors import TraceError
from simserve.validate.importers.aiperf import read_aiperf
from simserve.validate.importers.bench_lists import read_bench_lists

RUN = {
    "input_lens": [90, 40, 7, 8],
    "output_lens": [3, 2, 5, 1],
    "ttfts": [0.11, 0.09, 0.0, 0.5],
    "itls": [[0.02, 0.04], [0.03], [], []],
    "start_times": [10.0, 10.4, 11.0, 12.0],
    "errors": ["", "", "", "timed out"],
}


def test_vllm_bench_with_details(tmp_path):
    path = tmp_path / "bench.json"
    path.write_text(json.dumps(RUN))
    (outcome,) = read_bench_lists(path)
    assert (outcome.failed, outcome.left_out) == (1, 1)
    assert outcome.e2e_s == pytest.approx([0.17, 0.12])
    found = outcome.metrics()
    assert found["ttft_mean"] == pytest.approx(0.10)
    assert found["tpot_mean"] == pytest.approx(0.03)
    assert found["requests_per_s"] == pytest.approx(2 / 0.52)


def test_sglang_bench_has_a_line_per_run_and_no_start_times(tmp_path):
    line = json.dumps({key: value for key, value in RUN.items() if key != "start_times"})
    path = tmp_path / "bench.jsonl"
    path.write_text(f"{line}\n{line}\n\n")
    outcomes = read_bench_lists(path)
    assert len(outcomes) == 2
    assert outcomes[1].start_s is None
    assert "requests_per_s" not in outcomes[1].metrics()


def test_lists_of_unequal_length_are_refused(tmp_path):
    path = tmp_path / "bench.json"
    path.write_text(json.dumps({**RUN, "itls": [[]]}))
    with pytest.raises(TraceError, match="itls has 1"):
        read_bench_lists(path)


def test_a_summary_alone_has_no_requests(tmp_path):
    path = tmp_path / "bench.json"
    path.write_text(json.dumps({"mean_ttft_ms": 3.0}))
    with pytest.raises(TraceError, match="summary"):
        read_bench_lists(path)


def test_aiperf_leaves_out_warm_up_and_counts_errors(tmp_path):
    def record(phase="profiling", error=None, unit="ms"):
        return {
            "metadata": {"request_start_ns": 1000, "request_end_ns": 9_001_000, "benchmark_phase": phase},
            "metrics": {
                "time_to_first_token": {"value": 4.2, "unit": unit},
                "input_sequence_length": {"value": 20, "unit": "tokens"},
                "output_sequence_length": {"value": 3, "unit": "tokens"},
            },
            "error": error,
        }

    path = tmp_path / "profile_export.jsonl"
    path.write_text("\n".join(json.dumps(one) for one in (record(), record("warmup"), record(error="x"))))
    outcome = read_aiperf(path)
    assert (len(outcome.ttft_s), outcome.failed, outcome.left_out) == (1, 1, 1)
    assert outcome.metrics()["tpot_mean"] == pytest.approx((9e-3 - 4.2e-3) / 2)
    path.write_text(json.dumps(record(unit="h")))
    with pytest.raises(TraceError, match="unit 'h'"):
        read_aiperf(path)
