"""A real run of a load generator in its tool's shape: read back, replayed, and compared with the replay."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from simserve.cli import app
from simserve.validation.load_test import run_of
from simserve.validation.loadtests.read import read_load_test
from tests.places import SHARED

RUN = "A-20260217-155451-llama-2-7b-tp1-codegen"
MEASURED = f"validation/vllm_measured/requests_{RUN}.csv.gz"
BENCH = "validation/published/llmservingsim_requests_RTXPRO6000_Llama-3.1-8B.csv"
FIRST = 600
SCENARIO = """\
name: replay
model: llama-2-7b
engine: {preset: vllm-0.15, max_num_seqs: 128, max_num_batched_tokens: 2048, overhead: OVERHEAD}
workload: {trace: run.csv.gz}
pools: [{gpu: h100_sxm, max_model_len: 4096}]
"""


@pytest.fixture(scope="module")
def rows() -> list[dict[str, str]]:
    """The first requests of a measured run, which inference-perf sent."""
    with gzip.open(SHARED / MEASURED, "rt", newline="") as file:
        found = sorted(csv.DictReader(file), key=lambda row: float(row["arrival_s"]))
    return found[:FIRST]


@pytest.fixture(scope="module")
def measured(rows: list[dict[str, str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same requests as inference-perf writes them: stamps of a monotonic clock, the prompt as text."""
    path = tmp_path_factory.mktemp("measured") / "per_request_lifecycle_metrics.json"
    path.write_text(json.dumps([entry(row) for row in rows]))
    return path


def entry(row: dict[str, str]) -> dict[str, Any]:
    start = 81_234.5 + float(row["arrival_s"])
    tokens = int(row["output_tokens_requested"])
    ttft, e2e = float(row["ttft_s"]), float(row["e2e_s"])
    prompt = f"{row['prompt_id_inferred']}:" + "x" * (4 * int(row["input_tokens"]))
    return {
        "start_time": start,
        "end_time": start + e2e,
        "request": json.dumps({"prompt": prompt}),
        "response": "",
        "info": {
            "input_tokens": int(row["input_tokens"]),
            "output_tokens": tokens,
            "output_token_times": np.linspace(start + ttft, start + e2e, tokens).tolist(),
        },
        "error": None,
    }


@pytest.mark.reference(MEASURED)
def test_statistics_are_those_of_the_columns(rows: list[dict[str, str]], measured: Path) -> None:
    whole = run_of(read_load_test(str(measured))).summary["whole"]
    ttft_ms = np.array([1e3 * float(row["ttft_s"]) for row in rows])
    e2e_ms = np.array([1e3 * float(row["e2e_s"]) for row in rows])
    tokens = np.array([int(row["output_tokens_requested"]) for row in rows])
    assert whole["ttft_ms"]["mean"] == pytest.approx(ttft_ms.mean(), rel=1e-5)
    assert whole["ttft_ms"]["p99"] == pytest.approx(np.percentile(ttft_ms, 99), rel=1e-5)
    assert whole["e2e_ms"]["p50"] == pytest.approx(np.percentile(e2e_ms, 50), rel=1e-5)
    assert whole["tpot_ms"]["mean"] == pytest.approx(((e2e_ms - ttft_ms) / (tokens - 1)).mean(), rel=1e-5)


@pytest.mark.reference(MEASURED)
def test_replayed_and_compared(
    rows: list[dict[str, str]], measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trace is what was sent; its simulation is paired by request, and near."""
    monkeypatch.chdir(tmp_path)
    overhead = Path(__file__).parents[2] / "scenarios" / "overheads" / "vllm-0.15.yaml"
    Path("run.yaml").write_text(SCENARIO.replace("OVERHEAD", str(overhead)))
    for args in (
        ("trace", "convert", str(measured), "run.csv.gz"),
        ("run", "run.yaml", "--out", "sim", "--quiet"),
    ):
        done = CliRunner().invoke(app, args)
        assert done.exit_code == 0, done.output
    with gzip.open("run.csv.gz", "rt") as file:
        trace = list(csv.DictReader(file))
    start_s = float(rows[0]["arrival_s"])
    sent = [(float(row["arrival_s"]) - start_s, int(row["input_tokens"])) for row in rows]
    found = [(float(row["arrival_s"]), int(row["prompt_tokens"])) for row in trace]
    assert np.array(found) == pytest.approx(np.array(sent), abs=1e-6)
    table = json.loads(CliRunner().invoke(app, ["compare", "sim", str(measured), "--json"]).stdout)
    pairs = table["paired"]["sim"]
    assert pairs["ttft_ms"]["requests"] == pairs["e2e_ms"]["requests"] == len(rows)
    errors = {row["key"]: row["differences"]["sim"]["relative"] for row in table["measures"]}
    assert abs(errors["whole.e2e_ms.mean"]) < 0.06
    assert abs(errors["whole.tpot_ms.mean"]) < 0.06
    assert abs(errors["whole.ttft_ms.mean"]) < 0.25


@pytest.mark.reference(BENCH)
def test_two_clocks_are_set_by_the_smallest_lag(tmp_path: Path) -> None:
    """A published run as its tool wrote it: arrivals of 2026, stamps of a machine that was up for a day."""
    with (SHARED / BENCH).open(newline="") as file:
        rows = list(csv.DictReader(file))
    target = tmp_path / "requests.jsonl"
    target.write_text("\n".join(json.dumps(two_clocks(row)) for row in rows))
    test = read_load_test(str(target))
    assert test.format == "llmservingsim-bench"
    assert test.requests is not None
    by_arrival = sorted(rows, key=lambda row: float(row["arrival_s"]))
    ttft_ms = [1e3 * (float(row["first_token_s"]) - float(row["arrival_s"])) for row in by_arrival]
    assert test.requests.ttft_ms == pytest.approx(np.array(ttft_ms), abs=2e-3)


def two_clocks(row: dict[str, str]) -> dict[str, float]:
    engine = {
        f"{name}_ts": 86_400 + float(row[f"{name}_s"]) for name in ("queued", "first_token", "last_token")
    }
    tokens = {"input_toks": int(row["input_tokens"]), "output_toks": int(row["output_tokens"])}
    return {"arrival_time": 1_770_000_000 + float(row["arrival_s"]), **engine, **tokens}
