"""The page of a comparison with measured runs, in a real browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import measured_files as made
import pytest
from typer.testing import CliRunner

from simserve.cli import app

SCENARIO = """\
name: replay
model: llama-3.1-8b
engine: vllm-0.33
workload: {trace: bench.csv.gz}
pools: [{gpu: h100_sxm}]
"""


def simserve(*args: str) -> Any:
    return CliRunner().invoke(app, args)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A measured run and its simulation, in the current folder."""
    monkeypatch.chdir(tmp_path)
    made.write(Path("bench.json"), made.VLLM)
    simserve("trace", "convert", "bench.json", "bench.csv.gz")
    Path("replay.yaml").write_text(SCENARIO)
    assert simserve("run", "replay.yaml", "--out", "sim", "--quiet").exit_code == 0


@pytest.mark.usefixtures("here")
def test_a_simulation_beside_a_measured_run(open_page: Callable[..., Any]) -> None:
    done = simserve("compare", "sim", "bench.json", "--html", "page.html")
    assert done.exit_code == 0, done.output
    opened = open_page(Path("page.html").absolute())
    assert opened.complaints == []
    text = opened.page.inner_text("body")
    assert "Against bench.json, measured, sim: mean TTFT" in text
    assert "3 of 4 requests succeeded, 1 failed" in text
    assert "simserve compare sim bench.json" in text
    again = simserve("compare", "sim", "bench.json", "--html", "page.html")
    assert again.exit_code == 2
    assert "exists already" in again.stderr


@pytest.mark.usefixtures("here")
def test_measured_twice(open_page: Callable[..., Any]) -> None:
    """Two load tests, one of them statistics alone: no run, no folder, still a page."""
    made.write(Path("report.json"), made.llm_d())
    done = simserve("compare", "bench.json", "report.json", "--html", "page.html")
    assert done.exit_code == 0, done.output
    opened = open_page(Path("page.html").absolute())
    assert opened.complaints == []
    assert "Statistics alone have no requests to pair." in opened.page.inner_text("body")
