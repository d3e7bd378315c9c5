"""`import simserve`: light, documented, and the same results as the command line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import simserve
from simserve.cli import app
from simserve.deploy.build import run_scenario
from tests.tiny import tiny_mapping

PAGE = Path(__file__).parents[1] / "docs" / "python.md"
SMALL: dict[str, Any] = tiny_mapping(name="Small")


def test_importing_simserve_loads_nothing() -> None:
    code = "import sys; before = set(sys.modules); import simserve; print(len(set(sys.modules) - before))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(found.stdout) < 10  # importlib, and simserve itself
    assert {"run", "load", "Run", "Scenario"} <= set(dir(simserve))


def test_the_command_line_gives_the_same(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(json.dumps(SMALL))
    CliRunner().invoke(app, ["run", str(tmp_path / "small.yaml"), "--out", str(tmp_path / "out")])
    here, there = simserve.run(SMALL, advice=True), simserve.load(tmp_path / "out")
    assert here.summary == there.summary
    assert here.requests.equals(there.requests)
    assert here.timeline.equals(there.timeline)
    assert here.scenario == there.scenario
    assert here.name == there.name == "Small"
    kept = simserve.run(tmp_path / "small.yaml", out=tmp_path / "kept", advice=True)
    assert kept.summary == here.summary
    assert (tmp_path / "kept" / "report.html").is_file()
    with pytest.raises(simserve.ScenarioError, match="exists already"):
        simserve.run(SMALL, out=tmp_path / "kept")


def test_values_are_set_by_their_path() -> None:
    scenario = simserve.Scenario.model_validate(SMALL)
    for changes in ({"pools__0__replicas": 2}, {"pools.0.replicas": 2}):
        assert simserve.run(scenario, **changes).manifest["pools"][0]["replicas"] == 2
    (pool,) = simserve.run(SMALL, engine={"preset": "vllm-0.19", "max_num_seqs": 7}).manifest["pools"]
    assert (pool["engine"], pool["engine_options"]["max_num_seqs"]) == ("vllm-0.19", 7)


def test_mistakes_are_said_as_on_the_command_line() -> None:
    with pytest.raises(simserve.ScenarioError, match="did you mean 'tp'"):
        simserve.run(SMALL, pools__0__tpp=2)
    with pytest.raises(simserve.ScenarioError, match=r"no-such\.yaml: no such scenario file"):
        simserve.run("no-such.yaml")
    with pytest.raises(TypeError, match="a file name, a mapping or a Scenario, not list"):
        simserve.run([SMALL])  # type: ignore[arg-type]
    for wrong in ("scenarios/demo.yaml", SMALL):
        with pytest.raises(TypeError, match=r"run_scenario takes a Scenario.*simserve\.run"):
            run_scenario(wrong)  # type: ignore[arg-type]


def test_what_a_notebook_shows_is_short(tmp_path: Path) -> None:
    run = simserve.run(
        SMALL | {"compare": {"two": {"pools": [{"name": "all", "gpu": "h100_sxm", "replicas": 2}]}}}
    )
    assert len(repr(run)) < 400
    assert "requests/s" in repr(run)
    assert "variants: two" in repr(run)
    assert len(repr(run.stored)) < 100
    assert run._repr_html_().count("<tr") == 3  # a head and two runs
    assert len(run._repr_html_()) < 3000
    assert len(repr(run_scenario(simserve.Scenario.model_validate(SMALL)))) < 200
    assert list(run.table.index) == ["base", "two"]
    assert run.table.loc["base", "TTFT p50, ms"] == run.summary["whole"]["ttft_ms"]["p50"]


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return {"__folder__": tmp_path_factory.mktemp("page")}


@pytest.mark.parametrize(
    "block", re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
)
def test_every_example_of_the_page_works(
    block: str, names: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a line gives or prints stands in a comment behind it; `...` stands for anything."""
    monkeypatch.chdir(names["__folder__"])
    exec(block, names)
    printed = capsys.readouterr().out
    for line in block.splitlines():
        code, _, shown = line.strip().partition("  # ")
        if code.startswith("print("):
            found = printed.strip()
        elif shown[:1].isdigit() or shown.startswith(("True", "<")):
            found = repr(eval(code, names))
        else:
            continue
        pattern = ".*".join(re.escape(part.strip()) for part in shown.split("..."))
        assert re.search(pattern, found), f"{code}: {found}"
