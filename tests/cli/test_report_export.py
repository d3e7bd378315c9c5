"""`simserve report --export`: another tool's reader finds what summary.json says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simserve.report.export.llm_d import write_llm_d
from simserve.validation.loadtests.read import read_load_test

Call = Callable[..., Any]


@pytest.fixture
def folder(small: Path, simserve: Call) -> Path:
    assert simserve("run", small, "--out", "run").exit_code == 0
    return Path("run")


def test_the_command_writes_it_beside_the_page(folder: Path, simserve: Call) -> None:
    done = simserve("report", folder, "--export", "llm-d", "x.yaml")
    assert done.exit_code == 0, done.output
    assert done.stdout.split() == ["run/report.html", "x.yaml"]
    assert Path("x.yaml").read_text().startswith("version: '0.2'")
    again = simserve("report", folder, "--export", "llm-d", "x.yaml")
    assert again.exit_code == 2
    assert "x.yaml: exists already" in again.stderr
    assert simserve("report", folder, "--export", "llm-d", "x.yaml", "--force").exit_code == 0


@pytest.mark.parametrize(
    ("loop", "clients"), [("{concurrency: 3}", 3), ("{users: 5, think_s: {kind: constant, value: 1}}", 5)]
)
def test_a_closed_loop_says_how_many_clients(small: Path, simserve: Call, loop: str, clients: int) -> None:
    done = simserve("run", small, "--set", f"workload.closed_loop={loop}", "--out", "loop")
    assert done.exit_code == 0, done.output
    assert simserve("report", "loop", "--export", "llm-d", "x.yaml").exit_code == 0
    assert f"concurrency: {clients}\n" in Path("x.yaml").read_text()


def test_an_unknown_export_is_refused(folder: Path, simserve: Call) -> None:
    done = simserve("report", folder, "--export", "llmd", "x.yaml")
    assert done.exit_code == 2
    assert "--export llmd: allowed: llm-d (did you mean 'llm-d'?)" in done.stderr


def test_it_can_be_compared_with_the_run_it_came_from(folder: Path, simserve: Call) -> None:
    simserve("report", folder, "--export", "llm-d", "x.yaml")
    done = simserve("compare", "run", "x.yaml", "--json")
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["measures"]
    rates = [row["differences"]["run"]["relative"] for row in rows if "ttft" in row["key"]]
    assert rates == pytest.approx([0.0] * len(rates), abs=1e-12)


@pytest.mark.parametrize("name", ["r.yaml", "r.json"])
def test_what_llm_d_would_read_is_what_the_summary_says(folder: Path, tmp_path: Path, name: str) -> None:
    summary = json.loads((folder / "summary.json").read_text())
    counts, whole = summary["counts"], summary["whole"]
    found = read_load_test(str(write_llm_d(folder, tmp_path / name)), "auto")
    assert found.format == "llm-d-report"
    assert (found.sent, found.completed) == (counts["requests"], counts["completed"])
    wanted = {
        f"{key}.{statistic}": whole[key][statistic]
        for key in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms", "normalised_ms")
        for statistic in ("mean", "p50", "p90", "p95", "p99", "max")
    }
    wanted |= {key: whole[key] for key in ("requests_per_s", "output_tokens_per_s", "total_tokens_per_s")}
    assert dict(found.stated) == pytest.approx(wanted)


def test_the_export_holds_what_the_schema_requires_and_no_machine_path(folder: Path, tmp_path: Path) -> None:
    text = write_llm_d(folder, tmp_path / "r.json").read_text()
    assert write_llm_d(folder, tmp_path / "again.json").read_text() == text
    assert str(tmp_path) not in text
    report = json.loads(text)
    assert report.keys() == {"version", "run", "scenario", "results"}
    assert report["run"]["uid"]
    load = report["scenario"]["load"]["standardized"]
    assert {"tool", "tool_version", "source", "input_seq_len"} <= load.keys()
    for component in report["scenario"]["stack"]:
        assert {"label", "cfg_id"} <= component["metadata"].keys()
        parts = component["standardized"]
        assert {"kind", "tool", "tool_version", "role", "model", "accelerator"} <= parts.keys()
