"""Advice after a run: each change was simulated in short, and a whole run with it agrees."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simserve.study.advice import HELPS
from tests.tiny import tiny

FULL_KV = tiny(
    "full",
    model="llama-3.1-70b",
    requests=1200,
    rate_per_s=3,
    prompt=1000,
    output=300,
    pool="{gpu: h100_sxm, tp: 2}",
    slo="{ttft_ms: 2000, tpot_ms: 50}",
)
BOUND = 0.1
"""Most that a short run's gain may be away from a whole run's, as a share of the changed throughput."""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, simserve: Callable[..., Any]):
    """Run a scenario's text with options; returns what was printed, and summary.json as text."""
    monkeypatch.chdir(tmp_path)

    def call(text: str, *options: str) -> tuple[str, str]:
        Path("it.yaml").write_text(text)
        done = simserve("run", "it.yaml", "--out", "out", "--force", *options)
        assert done.exit_code in (0, 3), done.output
        return done.stdout, Path("out/summary.json").read_text()

    return call


def test_advice_for_a_full_cache_holds_in_a_whole_run(run) -> None:
    printed, text = run(FULL_KV)
    (advice,) = json.loads(text)["advice"]  # 1,200 requests pay for one change
    assert advice["set"] == ["pools.0.kv_dtype=fp8"]
    assert advice["requests"] * 2 < 1200
    words = f"would help: fp8 KV: {advice['effect'] * 100:+.3g} % throughput (checked with 400 requests)"
    assert words in " ".join(printed.split())
    page = Path("out/report.html").read_text()
    assert "fp8 KV: " in page
    assert "--set pools.0.kv_dtype=fp8" in page

    again, plain = run(FULL_KV, "--no-advice")
    assert "would help" not in again
    assert "advice" not in json.loads(plain)
    assert json.loads(plain) == {key: value for key, value in json.loads(text).items() if key != "advice"}

    _, other = run(FULL_KV, "--no-advice", "--set", *advice["set"])
    before, after = (json.loads(one)["whole"]["requests_per_s"] for one in (plain, other))
    assert abs(after / before - 1 - advice["effect"]) < BOUND * after / before
    assert after / before > 1.5


def test_the_same_seed_gives_the_same_advice(run) -> None:
    assert run(FULL_KV) == run(FULL_KV)


def test_nothing_is_advised_that_does_not_help(run) -> None:
    """No change makes a prompt of 1,000 tokens take 1 ms: 70 GB of weights alone take 21 ms on two H100."""
    hopeless = FULL_KV.replace("rate_per_s: 3", "rate_per_s: 0.1").replace("ttft_ms: 2000", "ttft_ms: 1")
    _, text = run(hopeless)
    assert json.loads(text)["slo_verdict"]["outcome"] == "missed"
    assert json.loads(text)["advice"] == []
    assert HELPS > 0


def test_a_run_that_meets_its_slo_is_not_advised(run) -> None:
    easy = FULL_KV.replace("rate_per_s: 3", "rate_per_s: 0.2").replace("tpot_ms: 50", "tpot_ms: 200")
    _, text = run(easy.replace("slo: {", "slo: {attainment: 0.9, "))
    assert json.loads(text)["slo_verdict"]["outcome"] == "met"
    assert json.loads(text)["advice"] == []
