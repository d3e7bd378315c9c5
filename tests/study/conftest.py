"""Small scenarios with studies."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from simserve.cli import app
from tests.study.starter import start

SMALL = """\
name: small study
model: llama-3.1-8b
engine: vllm-0.33
workload:
  synthetic:
    requests: 60
    arrivals: {kind: poisson, rate_per_s: 8}
    prompt_tokens: {kind: constant, value: 300}
    output_tokens: {kind: constant, value: 20}
pools:
  - {name: all, gpu: h100_sxm, price_per_gpu_hour: 2}
slo: {ttft_ms: 500, tpot_ms: 25, attainment: 0.9}
seed: 3
"""


@pytest.fixture
def study_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Write the small scenario with some more text; its folder becomes the current one."""
    monkeypatch.chdir(tmp_path)

    def write(more: str = "", *replacements: tuple[str, str]) -> Path:
        text = SMALL + more
        for old, new in replacements:
            assert old in text
            text = text.replace(old, new)
        path = tmp_path / "study.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture
def simserve() -> Callable[..., Any]:
    """Call `simserve` in this process; the result has exit_code, stdout and stderr."""

    def call(*args: str | Path | int) -> Any:
        return CliRunner().invoke(app, [str(arg) for arg in args])

    return call


@pytest.fixture
def process() -> Callable[..., subprocess.Popen[str]]:
    """Start `python -m simserve` in a process of its own, in the current folder."""
    return start
