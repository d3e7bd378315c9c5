"""A replica on more GPUs than a node has says what it takes for granted, in every command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simserve.deploy.pool_plan import beyond_node
from simserve.hardware import load_gpu
from simserve.scenario.pool_spec import PoolSpec
from tests.tiny import tiny

POOL, SLO = "{gpu: h100_sxm, tp: 8}", "{ttft_ms: 2000, tpot_ms: 100, attainment: 0.9}"
TEXT = (
    tiny("nodes", requests=60, rate_per_s=4, output=10, pool=POOL, slo=SLO)
    + """\
sweep: {over: {pools.0.tp: [8, 16]}}
capacity: {of: rate, from: 1, to: 4, replications: 1, curve: 0, precision: 0.5}
size: {catalogue: {h100_sxm: {price_per_gpu_hour: 2.5}}, tp: [16], replicas: 1}
search: {over: {workload.rate_scale: [1.0, 1.1]}, minimise: [ttft_ms.p99], trials: 1}
"""
)
SAID = "tp 16, but a node of h100_sxm has 8 GPUs"


def pool(**degrees: int) -> PoolSpec:
    return PoolSpec.model_validate({"gpu": "h100_sxm", **degrees})


@pytest.mark.parametrize(
    ("degrees", "words"),
    [
        ({"tp": 8}, ""),
        ({"tp": 16}, "tp 16, but"),
        ({"tp": 8, "pp": 2}, "tp 8 x pp 2, but"),
        ({"tp": 1, "dp": 16, "ep": 16}, "ep 16, but"),
        ({"tp": 1, "dp": 8, "ep": 8}, ""),
    ],
)
def test_an_h100_node_has_eight_gpus(degrees: dict[str, int], words: str) -> None:
    lines = beyond_node(pool(**degrees), load_gpu("h100_sxm"))
    assert len(lines) == bool(words)
    assert all(line.startswith(words) for line in lines)


def test_a_run_and_each_variant_say_so(tmp_path: Path, monkeypatch, simserve: Callable[..., Any]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("it.yaml").write_text(TEXT + "compare: {wide: {pools: [{gpu: h100_sxm, tp: 16}]}}\n")
    done = simserve("run", "it.yaml", "--out", "out")
    assert f"warning: wide: {SAID}" in done.stderr
    summary, manifest = (
        Path(f"out/variants/wide/{name}.json").read_text() for name in ("summary", "manifest")
    )
    assert any(SAID in line for line in json.loads(summary)["warnings"])
    assert any(SAID in line for line in json.loads(manifest)["assumptions"])
    assert SAID not in Path("out/summary.json").read_text()
    assert SAID in Path("out/report.html").read_text()


@pytest.mark.parametrize("study", ["sweep", "size", "capacity", "search"])
def test_a_study_says_so(study: str, tmp_path: Path, monkeypatch, simserve: Callable[..., Any]) -> None:
    if study == "search":
        pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    longer = TEXT.replace(
        "requests: 60", "requests: 400"
    )  # a search tells nobody of trials that are too short
    Path("it.yaml").write_text(longer if study == "search" else TEXT)
    wide = ("--set", "pools.0.tp=16") if study in ("capacity", "search") else ()
    done = simserve(study, "it.yaml", "--out", "out", "--workers", "1", *wide)
    assert done.exit_code in (0, 3), done.output
    assert f"warning: {SAID}" in done.stderr
    assert SAID in Path("out/report.html").read_text()
