"""Each scenario that ships, small, from the command line; bounds come from the trace and from physics."""

from __future__ import annotations

import gzip
import html
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

from simserve.cli import app
from simserve.paths import data_dir
from tests.places import SHARED

STUDIES = {"chunk_sweep.yaml", "cache_capacity.yaml", "pareto.yaml", "sizing.yaml"}
"""Scenarios that are not for `simserve run`: see test_studies."""
SCENARIOS = sorted(
    path.name
    for path in data_dir("scenarios").glob("*.yaml")
    if "\n  trace: " in path.read_text() and path.name not in STUDIES
)
N = 150

AZURE_CONV = "traces/azure_llm_2023_conv.csv.gz"
MARKED = [
    pytest.param(name, marks=pytest.mark.reference(AZURE_CONV)) if name == "azure_conv.yaml" else name
    for name in SCENARIOS
]

PARAMS = {  # published; what a token multiplies with, embedding and head left out: a lower bound
    "llama-3.1-8b": 8.03e9 - 2 * 128256 * 4096,
    "llama-3.1-70b": 70.55e9 - 2 * 128256 * 8192,
    "deepseek-v3": 37e9 - 2 * 129280 * 7168,
    "deepseek-v3-gqa8": 37e9 - 2 * 129280 * 7168,
}
GPU = {  # vendor, SXM, dense: bytes/s, FLOP/s at 16 and at 8 bits
    "h100_sxm": (3.35e12, {"bf16": 989e12, "fp8": 1979e12}),
    "h200_sxm": (4.8e12, {"bf16": 989e12, "fp8": 1979e12}),
}
BYTES = {"bf16": 2, "fp8": 1}


def first_rows(path: Path) -> np.ndarray:
    """Prompt and output tokens of the first N rows of a trace, read by hand."""
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    if path.name.endswith(".jsonl.gz"):
        rows = map(json.loads, lines[:N])
        return np.array([[row["input_length"], row["output_length"]] for row in rows])
    return np.array([[int(cell) for cell in line.split(",")[1:3]] for line in lines[1 : N + 1]])


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
        scenario = YAML(typ="safe").load(data_dir("scenarios") / name)
        return data_dir("traces") / Path(scenario["workload"]["trace"]).name, []
    path = SHARED / AZURE_CONV
    return path, [f"workload.trace={path}"]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[Path]]:
    """Simulate a scenario once, small; the folders of its runs, the base's first."""
    done: dict[str, list[Path]] = {}

    def folders(name: str) -> list[Path]:
        if name not in done:
            folder = tmp_path_factory.mktemp("golden") / "out"
            args = ["run", f"scenarios/{name}", "--out", str(folder), "--quiet"]
            for option in (f"workload.limit={N}", *trace_of(name)[1]):
                args += ["--set", option]
            finished = CliRunner().invoke(app, args)
            assert finished.exit_code in (0, 3), finished.output  # so few requests may look unstable
            done[name] = [folder, *sorted((folder / "variants").glob("*"))]
        return done[name]

    return folders


@pytest.mark.parametrize("name", MARKED)
def test_requests_and_tokens_are_those_of_the_trace(results: Callable[..., list[Path]], name: str) -> None:
    rows = first_rows(trace_of(name)[0])
    for folder in results(name):
        counts = json.loads((folder / "summary.json").read_text())["counts"]
        assert counts["completed"] == len(rows) == N, folder.name
        assert counts["prompt_tokens"] == rows[:, 0].sum()
        assert counts["output_tokens"] == rows[:, 1].sum()


@pytest.mark.parametrize("name", MARKED)
def test_no_request_beats_the_hardware(results: Callable[..., list[Path]], name: str) -> None:
    """A prompt takes at least its FLOPs, a decode step at least one read of the weights that it uses."""
    for folder in results(name):
        manifest = json.loads((folder / "manifest.json").read_text())
        pool = manifest["pools"][0]
        bandwidth, flops = GPU[pool["gpu"]]
        gpus, dtype = pool["tp"] * pool["pp"] * pool["dp"], pool["weights_dtype"].removesuffix("_block")
        params = PARAMS[manifest["model"]["name"]]
        table = pq.read_table(folder / "requests.parquet").to_pydict()
        arrival, first, last = (
            np.array(table[f"{key}_ns"]) for key in ("arrival", "first_token", "last_token")
        )
        computed = np.array(table["prompt_tokens"]) - np.array(table["cached_tokens"])
        assert (first - arrival >= 1e9 * 2 * params * computed / (gpus * flops[dtype])).all(), folder.name
        step_ns = 1e9 * BYTES[dtype] * params / (gpus * bandwidth)
        assert (last - first >= (np.array(table["output_tokens"]) - 1) * step_ns).all(), folder.name


COMPARED = [name for name in SCENARIOS if "compare:" in (data_dir("scenarios") / name).read_text()]


@pytest.mark.parametrize("name", COMPARED)
def test_a_comparison_says_what_its_variants_change(results: Callable[..., list[Path]], name: str) -> None:
    table = json.loads((results(name)[0] / "compare.json").read_text())
    scenario = YAML(typ="safe").load(data_dir("scenarios") / name)
    assert table["variants"] == list(scenario["compare"])
    for variant in table["variants"]:
        assert table["changes"][variant], variant
        assert table["paired"][variant]["ttft_ms"]["requests"] == N


def heading(folder: Path) -> str:
    """Return the sentence with which a page begins."""
    found = re.search(r"<h1[^>]*>(.*?)</h1>", (folder / "report.html").read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return html.unescape(re.sub(r"<[^>]+>", "", found[1])).replace("\u00a0", " ")


@pytest.mark.parametrize("name", MARKED)
def test_a_page_begins_with_one_short_sentence(results: Callable[..., list[Path]], name: str) -> None:
    said = heading(results(name)[0])
    assert 0 < len(said.split()) <= 25, said
    assert said.endswith("."), said


GENERATED = ("afd.yaml", "ep_balance.yaml", "ep_scale.yaml", "mtp.yaml", "tbo.yaml")
"""Comparisons of generated requests: they are as small as their question allows, and run as they are."""


@pytest.mark.slow
@pytest.mark.parametrize("name", GENERATED)
def test_a_page_of_many_large_runs_is_short_and_light(name: str, tmp_path: Path) -> None:
    """One sentence of at most 25 words without settings, and at most 1.5 MB."""
    done = CliRunner().invoke(app, ["run", f"scenarios/{name}", "--out", str(tmp_path / "out"), "--quiet"])
    assert done.exit_code == 0, done.output
    said = heading(tmp_path / "out")
    assert 0 < len(said.split()) <= 25, said
    assert said.endswith("."), said
    assert not re.search(r"[a-z]_[a-z]+ ->|→|not set", said), said
    assert (tmp_path / "out" / "report.html").stat().st_size <= 1_500_000


@pytest.mark.parametrize("name", COMPARED)
def test_the_headline_of_a_comparison_answers(results: Callable[..., list[Path]], name: str) -> None:
    """The SLO first, no setting by its key, and a variant with another load is never called better."""
    folder = results(name)[0]
    said, table = heading(folder), json.loads((folder / "compare.json").read_text())
    if json.loads((folder / "summary.json").read_text())["slo_verdict"]:
        assert "SLO" in re.split("[;:]", said)[0], said
    changes = [change["name"] for found in table["changes"].values() for change in found]
    assert not [key for key in changes if "_" in key and key in said], said
    for variant, found in table["changes"].items():
        loads = {"rate", "rate_scale", "users", "concurrency", "requests"}
        if any(change["name"].rpartition(".")[2] in loads for change in found):
            assert not re.search(rf"(with|\() ?{re.escape(variant)}\b", said), said


def values(folder: Path, key: str) -> dict[str, float]:
    rows = json.loads((folder / "compare.json").read_text())["measures"]
    return next(row["values"] for row in rows if row["key"] == key)


def test_smaller_steps_shorten_the_gaps_and_lengthen_the_wait(results: Callable[..., list[Path]]) -> None:
    """Sarathi-Serve's trade-off (OSDI 2024): the budget bounds the longest gap, prompts need more steps."""
    folder = results("chunked_prefill.yaml")[0]
    sizes = [f"tokens_{size}" for size in (256, 512, 1024, 2048, 8192)]
    gaps, ttft = values(folder, "whole.itl_ms.p99"), values(folder, "whole.ttft_ms.p50")
    assert [gaps[size] for size in sizes] == sorted(gaps.values())
    assert ttft["tokens_256"] > ttft["tokens_8192"]


def test_a_prefix_cache_hits_less_with_less_memory(results: Callable[..., list[Path]]) -> None:
    folder = results("prefix_caching.yaml")[0]
    rate = values(folder, "whole.hit_rate")
    assert rate["cache"] >= rate["memory_60"] >= rate["memory_35"] > rate["no_cache"] == 0
    lines = gzip.decompress((data_dir("traces") / "long_context.jsonl.gz").read_bytes()).splitlines()
    rows = [json.loads(line) for line in lines[:N]]
    known: set[int] = set()
    hit = total = 0
    for row in rows:  # a cache without limit, blocks of 512 tokens
        found = next(
            (i for i, block in enumerate(row["hash_ids"]) if block not in known), len(row["hash_ids"])
        )
        hit, total = hit + min(512 * found, row["input_length"]), total + row["input_length"]
        known |= set(row["hash_ids"])
    assert rate["cache"] <= hit / total


def test_latent_attention_keeps_fewer_bytes_unless_it_is_copied(results: Callable[..., list[Path]]) -> None:
    """Layers x 576 values against layers x 2 x 8 heads x 128 values, 2 bytes each."""
    per_gpu = values(results("mla_vs_gqa.yaml")[0], "deployment.kv_bytes_per_token_per_gpu")
    assert per_gpu["mla_tp8"] == 61 * 576 * 2  # every GPU keeps all of it
    assert per_gpu["gqa8_tp8"] == 61 * 2 * 1 * 128 * 2  # one KV head each
    assert per_gpu["mla_pp8"] == 8 * 576 * 2  # the largest of 8 stages
    assert per_gpu["gqa8_pp8"] == 8 * 2 * 8 * 128 * 2


def test_batches_that_wait_for_their_slowest_are_slower(results: Callable[..., list[Path]]) -> None:
    folder = results("static_vs_continuous.yaml")[0]
    e2e = values(folder, "whole.e2e_ms.p50")
    assert e2e["static"] > e2e["orca"]
    assert e2e["static"] > e2e["continuous"]


def test_a_closed_loop_keeps_its_clients_busy(run: Callable[..., Path]) -> None:
    folder = run("closed_loop.yaml", "workload.closed_loop.concurrency=10")
    table = pq.read_table(folder / "requests.parquet").to_pydict()
    arrival, last = np.sort(table["arrival_ns"]), np.sort(table["last_token_ns"])
    assert (arrival[:10] == 0).all()
    assert (arrival[10:] == last[: N - 10]).all()  # each end sends the next request


@pytest.mark.parametrize("name", ["fleet.yaml", "pd_split.yaml", "pd_deepseek.yaml"])
def test_fast_forward_changes_nothing(run: Callable[..., Path], name: str) -> None:
    def requests(value: str) -> dict[str, Any]:
        folder = run(name, f"fast_forward={value}", exit_codes=(0, 3))
        return pq.read_table(folder / "requests.parquet").to_pydict()

    assert requests("true") == requests("false")


def test_more_replicas_never_hurt_the_tail(run: Callable[..., Path]) -> None:
    def p99_ttft_ms(replicas: int) -> float:
        options = (f"pools.0.replicas={replicas}", "workload.rate_scale=30")  # too much for one
        folder = run("fleet.yaml", *options, exit_codes=(0, 3))
        return json.loads((folder / "summary.json").read_text())["whole"]["ttft_ms"]["p99"]

    tails = [p99_ttft_ms(replicas) for replicas in (1, 2, 4)]
    assert tails == sorted(tails, reverse=True)
