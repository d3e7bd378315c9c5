"""Each scenario that ships, small, from the command line; bounds come from the trace and from physics."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from simserve.cli import app
from simserve.paths import data_dir

PROMPTS_IN_COMMON = {"kv_tiers.yaml"}
"""Their prompts are partly cached; they have tests of their own."""
SCENARIOS = sorted({path.name for path in data_dir("scenarios").glob("*.yaml")} - PROMPTS_IN_COMMON)
N = 150

LLAMA_8B_PARAMS = 8.03e9  # published
H100_BYTES_PER_S = 3.35e12  # vendor, SXM
H100_BF16_FLOPS = 989e12  # vendor, dense
AZURE_CONV = "traces/azure_llm_2023_conv.csv.gz"


def first_rows(path: Path) -> np.ndarray:
    """Prompt and output tokens of the first N rows of an Azure-format file, read by hand."""
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()[1 : N + 1]
    return np.array([[int(cell) for cell in line.split(",")[1:3]] for line in lines])


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Path]:
    def simulate(name: str, *options: str, exit_codes: tuple[int, ...] = (0,)) -> Path:
        args = ["run", f"scenarios/{name}", "--out", str(tmp_path / "out"), "--force", "--quiet"]
        for option in (f"workload.limit={N}", *options):
            args += ["--set", option]
        done = CliRunner().invoke(app, args)
        assert done.exit_code in exit_codes, done.output
        return tmp_path / "out"

    return simulate


def trace_of(name: str) -> tuple[Path, list[str]]:
    """Return the trace behind a scenario, and the options that put it there."""
    if name != "azure_conv.yaml":
        return data_dir("traces") / "chat.csv.gz", []
    path = data_dir("scenarios").parent.parent / "shared" / AZURE_CONV
    if not path.is_file():
        pytest.skip("the public Azure trace is not here; simserve trace fetch brings it")
    return path, [f"workload.trace={path}"]


@pytest.mark.parametrize("name", SCENARIOS)
def test_requests_and_tokens_are_those_of_the_trace(run: Callable[..., Path], name: str) -> None:
    trace, options = trace_of(name)
    rows = first_rows(trace)
    folder = run(name, *options)
    counts = json.loads((folder / "summary.json").read_text())["counts"]
    assert counts["completed"] == len(rows) == N
    assert counts["prompt_tokens"] == rows[:, 0].sum()
    assert counts["output_tokens"] == rows[:, 1].sum()


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_request_beats_the_hardware(run: Callable[..., Path], name: str) -> None:
    """A prompt takes at least its FLOPs, a decode step at least one read of the weights."""
    _, options = trace_of(name)
    folder = run(name, *options)
    table = pq.read_table(folder / "requests.parquet").to_pydict()
    arrival, first, last = (np.array(table[f"{key}_ns"]) for key in ("arrival", "first_token", "last_token"))
    prompt, output = np.array(table["prompt_tokens"]), np.array(table["output_tokens"])
    multiplied = LLAMA_8B_PARAMS - 128256 * 4096  # the embedding is looked up
    assert (first - arrival >= 1e9 * 2 * (multiplied - 128256 * 4096) * prompt / H100_BF16_FLOPS).all()
    step_ns = 1e9 * 2 * multiplied / H100_BYTES_PER_S
    assert (last - first >= (output - 1) * step_ns).all()


def test_a_closed_loop_keeps_its_clients_busy(run: Callable[..., Path]) -> None:
    folder = run("closed_loop.yaml", "workload.closed_loop.concurrency=10")
    table = pq.read_table(folder / "requests.parquet").to_pydict()
    arrival, last = np.sort(table["arrival_ns"]), np.sort(table["last_token_ns"])
    assert (arrival[:10] == 0).all()
    assert (arrival[10:] == last[: N - 10]).all()  # each end sends the next request


def test_fast_forward_changes_nothing(run: Callable[..., Path]) -> None:
    def requests(value: str) -> dict[str, Any]:
        folder = run("fleet.yaml", f"fast_forward={value}")
        return pq.read_table(folder / "requests.parquet").to_pydict()

    assert requests("true") == requests("false")


def test_more_replicas_never_hurt_the_tail(run: Callable[..., Path]) -> None:
    def p99_ttft_ms(replicas: int) -> float:
        options = (f"pools.0.replicas={replicas}", "workload.rate_scale=30")  # too much for one
        folder = run("fleet.yaml", *options, exit_codes=(0, 3))
        return json.loads((folder / "summary.json").read_text())["whole"]["ttft_ms"]["p99"]

    tails = [p99_ttft_ms(replicas) for replicas in (1, 2, 4)]
    assert tails == sorted(tails, reverse=True)
