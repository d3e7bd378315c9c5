"""The command line on a small scenario, in this process and in one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from simserve.cli import app

SMALL = """\
name: Small run, 1 GPU
model: llama-3.1-8b
engine: vllm-0.33
workload:
  synthetic:
    requests: 40
    arrivals: {kind: poisson, rate_per_s: 8}
    prompt_tokens: {kind: constant, value: 300}
    output_tokens: {kind: constant, value: 20}
pools:
  - {name: all, gpu: h100_sxm}
slo: {ttft_ms: 500, tpot_ms: 25}
seed: 3
"""


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A scenario file in an empty folder, which becomes the current one."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "small.yaml"
    path.write_text(SMALL, encoding="utf-8")
    return path


@pytest.fixture
def simserve() -> Callable[..., Any]:
    """Call `simserve` in this process; the result has exit_code, stdout and stderr."""

    def call(*args: str | Path) -> Any:
        return CliRunner().invoke(app, [str(arg) for arg in args])

    return call


@pytest.fixture
def process() -> Callable[..., subprocess.Popen[str]]:
    """Start `python -m simserve` in a process of its own, in the current folder."""

    def start(*args: str | Path) -> subprocess.Popen[str]:
        root = str(Path(__file__).parents[2])
        return subprocess.Popen(
            [sys.executable, "-m", "simserve", *map(str, args)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path.cwd()), root])},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start
