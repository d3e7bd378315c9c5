"""Each study that ships, small, from the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from simserve.cli import app


@pytest.fixture
def study(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    def run(command: str, name: str, *options: str) -> dict[str, Any]:
        args = [command, f"scenarios/{name}", "--out", str(tmp_path / "out"), "--quiet", "--workers", "1"]
        for option in options:
            args += ["--set", option]
        done = CliRunner().invoke(app, args)
        assert done.exit_code in (0, 3), done.output
        assert (tmp_path / "out" / "report.html").stat().st_size > 10_000
        return json.loads((tmp_path / "out" / "study.json").read_text())

    return run


def test_smaller_steps_shorten_the_gaps(study: Callable[..., dict[str, Any]]) -> None:
    """The budget of a step bounds the longest gap (Sarathi-Serve, OSDI 2024)."""
    over = "{engine.max_num_batched_tokens: [256, 1024, 8192]}"
    found = study("sweep", "chunk_sweep.yaml", "workload.limit=150", f"sweep={{over: {over}}}")
    gaps = [point["means"]["itl_ms.p99"] for point in found["points"]]
    assert gaps == sorted(gaps)


def test_a_larger_cache_hits_more(study: Callable[..., dict[str, Any]]) -> None:
    over = "{pools.0.kv_tiers.0.capacity_gib: [2.0, 200.0]}"
    found = study("sweep", "cache_capacity.yaml", "workload.limit=150", f"sweep={{over: {over}}}")
    hits = [point["means"]["hit_rate"] for point in found["points"]]
    assert 0 < hits[0] < hits[1]


def test_a_smaller_service_needs_fewer_gpus(study: Callable[..., dict[str, Any]]) -> None:
    """200 users instead of 1,000; one H100 does not hold 70 billion weights of 2 bytes."""
    found = study(
        "size",
        "sizing.yaml",
        "workload.synthetic.requests=300",
        "workload.synthetic.arrivals.rate_per_s=2.7",
        "size.catalogue={h100_sxm: {price_per_gpu_hour: 2.5}}",
        "size.tp=[1, 4]",
        "size.engine={max_num_batched_tokens: [2048]}",
        "size.replications=1",
    )
    because = {one["words"]: one["because"] for one in found["impossible"]}
    assert "need 14" in because["h100_sxm, tp 1, weights_dtype bf16, max_num_batched_tokens 2048"]
    assert found["feasible"][0]["gpus"] <= 8


def test_deepseek_does_not_fit_on_eight_h100(study: Callable[..., dict[str, Any]]) -> None:
    """671e9 bytes of weights on 8 x 80 GB."""
    pytest.importorskip("optuna")
    found = study("search", "pareto.yaml", "workload.limit=20", "search.trials=8", "search.sampler=random")
    for point in found["points"]:
        small = point["settings"]["pools.0.gpu"] == "h100_sxm" and point["settings"]["pools.0.tp"] == 8
        assert (point["status"] == "impossible") == small
        assert not small or "does not fit" in point["reason"]
