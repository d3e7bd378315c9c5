"""`simserve run`: what it writes, prints and returns."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from ruamel.yaml import YAML

Call = Callable[..., Any]

FILES = {
    "report.html",
    "requests.parquet",
    "timeline.parquet",
    "gaps.parquet",
    "summary.json",
    "scenario.resolved.yaml",
    "manifest.json",
}


def test_a_run_writes_its_folder_and_prints_the_answer(small: Path, simserve: Call) -> None:
    done = simserve("run", small)
    assert done.exit_code == 0, done.output
    folder = small.parent / "reports" / "small-run-1-gpu"
    assert {path.name for path in folder.iterdir()} == FILES
    assert "40 of 40 requests completed" in done.stdout
    assert str(Path("reports", "small-run-1-gpu", "report.html")) in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    assert done.stderr == ""


def test_the_manifest_says_what_the_run_was_made_of(small: Path, simserve: Call) -> None:
    simserve("run", small.name, "--set", "pools.0.replicas=2")
    manifest = json.loads((small.parent / "reports/small-run-1-gpu/manifest.json").read_text())
    assert manifest["command"] == "simserve run small.yaml --set pools.0.replicas=2"
    assert manifest["trace"]["requests"] == 40
    pool = manifest["pools"][0]
    assert pool["replicas"] == 2
    assert sum(line["bytes"] for line in pool["ledger"]) == pytest.approx(85e9, rel=0.02)  # CUDA's 79.1 GiB
    assert pool["engine_options"]["max_num_batched_tokens"] == 8192  # vLLM's default on an 80 GB card
    assert all(len(sha256) == 64 for sha256 in manifest["profiles"].values())
    assert any(name.startswith("h100_sxm/") for name in manifest["profiles"])


def test_outputs_hold_no_machine_path(small: Path, simserve: Call) -> None:
    simserve("run", small)
    for path in (small.parent / "reports/small-run-1-gpu").iterdir():
        data = path.read_bytes()
        assert str(small.parent).encode() not in data, path.name
        assert str(Path(__file__).parents[2]).encode() not in data, path.name


def test_same_inputs_give_the_same_bytes(small: Path, simserve: Call) -> None:
    simserve("run", small, "--out", "a")
    simserve("run", small, "--out", "b")
    for name in FILES:
        assert Path("a", name).read_bytes() == Path("b", name).read_bytes(), name


def test_the_resolved_scenario_gives_the_same_result(small: Path, simserve: Call) -> None:
    simserve("run", small, "--out", "a", "--set", "engine.max_num_seqs=7")
    again = simserve("run", "a/scenario.resolved.yaml", "--out", "b")
    assert again.exit_code == 0, again.output
    for name in FILES - {"manifest.json", "report.html"}:  # these two name the command
        assert Path("a", name).read_bytes() == Path("b", name).read_bytes(), name
    resolved = YAML(typ="safe").load(Path("a/scenario.resolved.yaml"))
    assert resolved["pools"][0]["engine"]["max_num_seqs"] == 7
    assert resolved["pools"][0]["engine"]["max_num_batched_tokens"] == 8192


def test_json_is_all_that_stands_on_stdout(small: Path, simserve: Call) -> None:
    done = simserve("run", small, "--json")
    assert json.loads(done.stdout)["counts"]["completed"] == 40
    written = json.loads((small.parent / "reports/small-run-1-gpu/summary.json").read_text())
    assert json.loads(done.stdout) == written


def test_quiet_prints_only_the_path(small: Path, simserve: Call) -> None:
    done = simserve("run", small, "--quiet", "--out", "here")
    assert done.stdout == f"{Path('here', 'report.html')}\n"


def test_set_changes_the_run(small: Path, simserve: Call) -> None:
    simserve("run", small, "--out", "a", "--set", "workload.limit=9", "--set", "workload.max_tokens=5")
    requests = pq.read_table("a/requests.parquet")
    assert len(requests) == 9
    assert set(requests["output_tokens"].to_pylist()) == {5}


def test_an_existing_folder_is_refused_before_simulating(small: Path, simserve: Call) -> None:
    simserve("run", small, "--out", "a")
    before = Path("a/summary.json").read_bytes()
    # A scenario that could not be built shows that the folder is looked at first.
    refused = simserve("run", small, "--out", "a", "--set", "model=nonsense")
    assert refused.exit_code == 2
    assert len(refused.stderr.splitlines()) == 1
    assert "a: exists already" in refused.stderr
    assert Path("a/summary.json").read_bytes() == before
    assert simserve("run", small, "--out", "a", "--force", "--set", "seed=4").exit_code == 0
    assert Path("a/summary.json").read_bytes() != before


def test_force_does_not_replace_foreign_folders(small: Path, simserve: Call) -> None:
    Path("mine").mkdir()
    Path("mine/thesis.txt").write_text("precious")
    refused = simserve("run", small, "--out", "mine", "--force")
    assert refused.exit_code == 2
    assert "thesis.txt" in refused.stderr
    assert Path("mine/thesis.txt").read_text() == "precious"


def test_a_folder_that_cannot_be_made_is_refused(small: Path, simserve: Call) -> None:
    refused = simserve("run", small, "--out", "small.yaml/deep/er", "--set", "model=nonsense")
    assert refused.exit_code == 2
    assert len(refused.stderr.splitlines()) == 1
    assert "small.yaml/deep/er: cannot be made" in refused.stderr


def test_report_writes_the_page_again(small: Path, simserve: Call) -> None:
    simserve("run", small, "--out", "a")
    page = Path("a/report.html").read_bytes()
    Path("a/report.html").unlink()
    done = simserve("report", "a")
    assert done.exit_code == 0
    assert Path(done.stdout.strip()).read_bytes() == page
    assert simserve("report", small.parent / "nowhere").exit_code == 2


def test_run_names_the_command_of_a_block_that_it_leaves_aside(small: Path, simserve: Call) -> None:
    block = "capacity: {of: rate, from: 1, to: 9}\nsweep: {over: {pools.0.tp: [1, 2]}}\n"
    small.write_text(small.read_text(encoding="utf-8") + block, encoding="utf-8")
    done = simserve("run", small.name)
    assert done.exit_code == 0
    assert "simserve capacity small.yaml" in done.stderr
    assert "simserve sweep small.yaml" in done.stderr
    assert "simserve size" not in done.stderr


def test_a_check_simulates_and_writes_nothing(small: Path, simserve: Call) -> None:
    done = simserve("run", small, "--check")
    assert done.exit_code == 0, done.stderr
    assert "40 requests" in done.stdout
    lines = [line.split() for line in done.stdout.splitlines()]
    (kv_gb,) = (float(words[0]) for words in lines if words[-2:] == ["KV", "cache"])
    (tokens,) = (int(words[0].replace(",", "")) for words in lines if words[1:3] == ["KV", "tokens"])
    per_token = 2 * 32 * 8 * 128 * 2  # keys and values, layers, KV heads, width of a head, bytes of bf16
    assert tokens * per_token == pytest.approx(kv_gb * 1e9, abs=0.01e9)
    assert [path.name for path in small.parent.iterdir()] == ["small.yaml"]
    assert re.fullmatch(
        r"40 requests in all: about \d+ s here, by the first 300 of each run", done.stdout.splitlines()[-1]
    )
    wrong = simserve("run", small, "--check", "--set", "model=llama-3.1-70b")
    assert wrong.exit_code == 2
    assert "tp 2" in wrong.stderr


def test_a_check_names_what_is_wrong_in_every_variant_and_study(small: Path, simserve: Call) -> None:
    block = """
compare:
  too_big: {model: llama-3.1-70b}
  too_long: {pools: [{name: all, gpu: h100_sxm, max_model_len: 900000}]}
capacity: {of: users, from: 1, to: 9}
sweep: {over: {pools.0.tpp: [1, 2]}}
"""
    small.write_text(small.read_text(encoding="utf-8") + block, encoding="utf-8")
    done = simserve("run", small, "--check")
    assert done.exit_code == 2
    for words in ("llama-3.1-70b does not fit", "max_model_len", "users need a pause", "did you mean 'tp'?"):
        assert words in done.stderr, words


def test_a_check_counts_ffn_gpus_and_their_price(small: Path, simserve: Call) -> None:
    """24 attention GPUs and 8 for the experts at 2.5 an hour each: 80 an hour."""
    pool = "pools=[{name: gpus, gpu: h200_sxm, dp: 24, price_per_gpu_hour: 2.5, afd: {ffn_gpus: 8}}]"
    done = simserve("run", small, "--check", "--set", "model=deepseek-v3", "--set", pool)
    assert done.exit_code == 0, done.output
    assert "dp 24: 32 GPUs, 8 of them for FFNs alone" in done.stdout
    assert "32 GPUs cost $80/h" in done.stdout
    # 40 requests of 20 tokens over the span of their arrivals
    times = arrivals(simserve, small)
    per_million = 80 / (40 * 20 / (times[-1] - times[0]) * 1e9 * 3600) * 1e6
    (shown,) = re.findall(r"\$([\d.,]+) per million output tokens", done.stdout)
    assert float(shown.replace(",", "")) == pytest.approx(per_million, rel=0.005)


def arrivals(simserve: Call, file: Path) -> list[float]:
    simserve("run", file, "--out", "plain")
    return pq.read_table("plain/requests.parquet")["arrival_ns"].to_pylist()
