"""The command: what it writes can be simulated with, and what it refuses it refuses in one line."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from simserve.cli import app
from simserve.engines.overheads import overhead_named
from simserve.hardware import load_gpu
from simserve.latency import ProfileStore, compile_step_latency, explain_step
from simserve.model import Parallelism, load_model
from simserve.profiler import device
from simserve.profiler.checking.check import check_profile
from simserve.profiler.device import Device
from simserve.profiler.job import Job

SCENARIO = """\
name: tiny on this CPU
model: tiny
engine: {{preset: vllm-0.33, max_num_batched_tokens: 256, max_num_seqs: 8, overhead: ideal}}
workload:
  synthetic:
    requests: 10
    arrivals: {{kind: poisson, rate_per_s: 2}}
    prompt_tokens: {{kind: constant, value: 64}}
    output_tokens: {{kind: constant, value: 8}}
pools:
  - {{gpu: cpu, weights_dtype: fp32, kv_dtype: fp32, max_model_len: 1024}}
profiles: [{profiles}]
"""


def run(*args: str | Path):
    return CliRunner().invoke(app, ["profile", *map(str, args)])


@pytest.fixture(scope="module")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A profile of this CPU for the model tiny: the corners of every grid, each timed briefly."""
    out = tmp_path_factory.mktemp("profiles")
    job = Job.make(
        "cpu", "cpu", ["tiny"], ["gemm", "attn_decode", "attn_prefill", "elementwise"], [1], threads=1
    )
    corners = replace(job, cases=[case for case in job.cases if case.level == 0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("simserve.profiler.run.MOST_CASE_S", 0.1)
        outcome = corners.run(out, 600)
    assert (outcome.timed, outcome.not_timed, outcome.left) == (len(corners.cases), 0, 0)
    return out


def test_tables_have_the_format_and_their_provenance(profiles: Path) -> None:
    table = ProfileStore([profiles], shipped=False).table("cpu", "gemm")
    assert table is not None
    assert table.about["key_columns"] == ["dtype", "n", "k", "m"]
    assert table.about["sweep_axis"] == "m"
    assert {"device", "torch", "clocks", "at", "load_average", "threads"} <= set(table.about["sessions"][0])
    columns = {"latency_us", "n_samples", "std_us", "p10_us", "p90_us", "n_merged", "quality"}
    assert columns | {"backend", "backend_version", "kernel", "source"} <= set(table.names)
    assert set(table.column("source").tolist()) == {"simserve"}
    assert pq.read_schema(profiles / "cpu" / "attn_decode.parquet").field("kv_len").type == "int64"


def test_a_step_is_priced_from_what_was_measured(profiles: Path) -> None:
    latency = compile_step_latency(
        load_model("tiny"), load_gpu("cpu", [profiles]), Parallelism(), weights_dtype="fp32", kv_dtype="fp32",
        overhead=overhead_named("ideal"), profiles=ProfileStore([profiles], shipped=False), analytic="refuse",
    )  # fmt: skip
    assert latency.estimated == ()
    parts = {part.name: part for part in explain_step(latency, 1, 2048)}
    row = ProfileStore([profiles]).table("cpu", "attn_decode")
    assert row is not None
    measured = row.select(batch=1, kv_len=2048).numbers("latency_us")
    assert parts["attention, decode"].us == pytest.approx(8 * measured[0], rel=1e-5)
    kernels = [part for name, part in parts.items() if name != "engine overhead"]
    assert {part.provenance for part in kernels} == {"measured"}


def test_a_scenario_runs_on_it_without_torch(profiles: Path, tmp_path: Path) -> None:
    scenario = tmp_path / "tiny.yaml"
    scenario.write_text(SCENARIO.format(profiles=profiles))
    code = (
        "import sys\n"
        "from simserve.deploy.build import build_all\n"
        "from simserve.scenario import load_scenario\n"
        "import simserve.cli, simserve.cli.run, simserve.cli.profile\n"
        f"(deployment,) = build_all(load_scenario({str(scenario)!r}, [])).values()\n"
        "result = deployment.simulate(None)\n"
        "print(len(result.last_token_ns), 'torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["10", "False"], done.stderr


def test_check_says_what_is_covered_and_what_is_not(profiles: Path) -> None:
    found = check_profile(profiles, "", ["tiny", "tiny-mla-moe"], 1, "")
    tiny = {step.step: step.shares for step in found.coverage["tiny"]}
    assert tiny["decode, 1 sequence of 256"]["analytic"] == pytest.approx(0, abs=1e-3)
    latent = {step.step: step.shares for step in found.coverage["tiny-mla-moe"]}
    assert latent["decode, 8 sequences of 512"]["analytic"] > 0.05
    assert any("mla_decode" in line for line in found.estimated)
    assert any("routed experts" in line for line in found.next)


def test_check_writes_a_page(profiles: Path, tmp_path: Path) -> None:
    page = tmp_path / "check.html"
    result = run("check", profiles, "--gpu", "cpu", "--models", "tiny", "--dtype", "fp32", "--html", page)
    assert result.exit_code == 0, result.output
    command = f"simserve profile check {profiles} --gpu cpu --models tiny --tp 1 --dtype fp32 --html {page}"
    assert command in page.read_text()
    assert "measured kernel times" in page.read_text()
    assert run("check", profiles, "--models", "tiny", "--html", page).exit_code == 2


def test_the_command_stops_within_its_budget_and_goes_on(tmp_path: Path) -> None:
    options = ["run", "--gpu-name", "cpu", "--models", "tiny", "--ops", "host_copy,launch", "--out", tmp_path]
    first = run(*options, "--budget", "0.1s")
    assert first.exit_code == 0, first.output
    assert "0 timed, 0 not timed, 0 from earlier runs, 11 left of 11" in first.output
    assert "go on with --resume" in first.output
    second = run(*options, "--budget", "10m", "--resume")
    assert "11 timed, 0 not timed, 0 from earlier runs, 0 left of 11" in second.output
    third = run(*options, "--resume")
    assert "0 timed, 0 not timed, 11 from earlier runs, 0 left of 11" in third.output


def test_measured_folders_are_not_overwritten(profiles: Path) -> None:
    result = run("run", "--gpu-name", "cpu", "--models", "tiny", "--ops", "launch", "--out", profiles)
    assert result.exit_code == 2
    assert "say --resume, or give another --out" in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_tables_of_others_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "gemm.parquet").write_bytes(b"")
    result = run("run", "--gpu-name", "cpu", "--models", "tiny", "--ops", "launch", "--out", tmp_path)
    assert result.exit_code == 2
    assert "holds tables that no profile run has made" in result.output


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--gpu-name", "h200_sxm"], "no CUDA device: "),
        (["--gpu-name", "cpu", "--weights-dtype", "fp8"], "has no fp8 units: measure in bf16, fp16 or fp32"),
        (["--gpu-name", "cpu", "--dtype", "fp7"], "unknown dtype 'fp7'"),
        (["--gpu-name", "cpu", "--dtype", "bf61"], "did you mean 'bf16'?"),
        (["--gpu-name", "cpu", "--ops", "gem"], "did you mean 'gemm'?"),
        (["--gpu-name", "cpu", "--models", "tinny"], "unknown model 'tinny'"),
        (["--gpu-name", "cpu", "--tp", "two"], "--tp 'two': allowed: whole numbers from 1"),
        (["--gpu-name", "cpu", "--tp", "3"], "none divides the attention heads"),
        (["--gpu-name", "cpu", "--budget", "soon"], "--budget 'soon': allowed: a number and s, m or h"),
        (["--gpu-name", "../cpu"], "--gpu-name '../cpu': allowed:"),
        (["--gpu-name", "cpu", "--device", "tpu"], "allowed: cuda and cpu"),
        (["--gpu-name", "cpu", "--backends", "flash_attn"], "--backends flash_attn: flash_attn "),
        (["--gpu-name", "cpu", "--ops", "moe,mla_bmm"], "no --ops moe,mla_bmm in tiny with --tp 1"),
    ],
)
def test_one_clear_line(options: list[str], words: str, tmp_path: Path) -> None:
    result = run("run", "--models", "tiny", "--out", tmp_path, *options)
    assert result.exit_code == 2
    assert words in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_without_torch_one_clear_line(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None; from simserve.cli import app; "
        f"app(['profile', 'run', '--gpu-name', 'cpu', '--models', 'tiny', '--out', {str(tmp_path)!r}])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "profiling needs torch" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_library_that_is_not_installed_has_no_version() -> None:
    assert device.version_of("deep_ep") == "" or device.library("deep_ep") is not None
    assert device.version_of("torch")


def test_no_gpu_is_said_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = run("run", "--gpu-name", "h200_sxm", "--models", "tiny", "--out", tmp_path)
    assert result.exit_code == 2
    assert "measure the CPU with --gpu-name cpu" in result.output
    assert list(tmp_path.iterdir()) == []


def test_a_machine_without_free_memory_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Device, "free_bytes", lambda self: 10**6)
    options = ["--gpu-name", "unheard_of", "--device", "cpu", "--models", "tiny", "--ops", "launch"]
    result = run("run", *options, "--out", tmp_path)
    assert result.exit_code == 2
    # Three matrices of 1,024 squared, 4 bytes each, are 12.6 MB.
    assert "0.00 GB are free, its peak is measured with 0.01 GB" in result.output
