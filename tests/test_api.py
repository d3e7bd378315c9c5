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
from simserve import api
from simserve.cli import app
from simserve.deploy.build import run_scenario
from simserve.errors import TraceError
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
    assert run._repr_html_().count("<svg") == 2
    assert len(run._repr_html_()) < 200_000
    assert "<script" not in run._repr_html_()
    assert len(repr(run_scenario(simserve.Scenario.model_validate(SMALL)))) < 200
    assert list(run.table.index) == ["base", "two"]
    assert run.table.loc["base", "TTFT p50, ms"] == run.summary["whole"]["ttft_ms"]["p50"]


def test_names_are_those_of_the_page() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(rows) == simserve.__all__ == api.__all__
    assert all(hasattr(simserve, name) for name in rows)
    stub = PAGE.parents[1] / "simserve" / "__init__.pyi"
    typed = re.findall(r"import \w+ as (\w+)", stub.read_text(encoding="utf-8"))
    assert sorted(typed) == simserve.__all__


def test_a_router_is_a_package_and_a_decorator() -> None:
    from simserve.router.base import Router

    for _ in range(2):  # a cell that is run again

        @simserve.router("test_to_the_last")
        class Last(Router):
            def choose(self, request: Any, targets: Any, now_ns: int) -> int:
                return len(targets) - 1

    run = simserve.run(SMALL, {"router": "test_to_the_last", "pools.0.replicas": 3})
    assert run.requests["replica"].nunique() == 1
    with pytest.raises(simserve.ScenarioError, match="registered twice"):
        simserve.router("round_robin")(Last)
    with pytest.raises(simserve.ScenarioError, match="registered twice"):
        simserve.scheduler("orca")(Last)


def test_summaries_are_read_with_dots() -> None:
    run = simserve.run(SMALL)
    assert run.summary.whole.ttft_ms.p99 == run.stored.summary["whole"]["ttft_ms"]["p99"]
    assert run.summary == run.stored.summary
    assert "whole" in dir(run.summary)
    with pytest.raises(AttributeError, match=r"no figure 'hole'.*did you mean 'whole'"):
        _ = run.summary.hole


def test_runs_are_compared_and_written(tmp_path: Path) -> None:
    one, two = simserve.run(SMALL), simserve.run(SMALL, {"pools.0.replicas": 2})
    both = simserve.compare(one=one, two=two)
    assert list(both.table.columns) == ["one", "two"]
    assert both.answer in repr(both)
    assert both.report(tmp_path / "new") == tmp_path / "new" / "report.html"
    assert both._repr_html_().count("<svg") == 2
    assert "Small" in one.report(tmp_path / "one.html").read_text()
    simserve.run(SMALL, out=tmp_path / "stored")
    assert list(simserve.compare(tmp_path / "stored", two=two).runs) == ["stored", "two"]
    with pytest.raises(simserve.ScenarioError, match="two runs are called 'Small'"):
        simserve.compare(one, two)
    with pytest.raises(simserve.ScenarioError, match="takes two runs"):
        simserve.compare(one)


STUDIES = {
    "sweep": {"over": {"pools.0.tp": [1, 2]}},
    "capacity": {"of": "rate", "from": 4, "to": 16, "replications": 2, "precision": 0.5},
    "size": {"catalogue": {"h100_sxm": {"price_per_gpu_hour": 2.5}}, "tp": [1], "replicas": 2},
}


@pytest.mark.parametrize("kind", STUDIES)
def test_a_study_is_that_of_the_command_line(kind: str, tmp_path: Path) -> None:
    scenario = SMALL | {kind: STUDIES[kind], "slo": {"ttft_ms": 500, "tpot_ms": 25, "attainment": 0.9}}
    (tmp_path / "it.yaml").write_text(json.dumps(scenario))
    args = [kind, str(tmp_path / "it.yaml"), "--out", str(tmp_path / "out"), "--workers", "1"]
    assert CliRunner().invoke(app, args).exit_code == 0
    stored = json.loads((tmp_path / "out" / "study.json").read_text())
    study = getattr(simserve, kind)(scenario, workers=1)
    assert study.summary | {"command": ""} == stored | {"command": ""}
    assert study.answer in repr(study)
    assert len(study.table) == len(stored["feasible" if kind == "size" else "points"])
    assert study.answer.partition(":")[0] in (study.report(tmp_path / "page.html")).read_text()
    assert "<svg" in study._repr_html_() or kind == "size"  # one deployment alone is not drawn


def test_a_trace_of_arrays(tmp_path: Path) -> None:
    trace = simserve.Trace.from_arrays([2.0, 1.0, 1.5], [10, 20, 30], [1, 2, 0])
    assert trace.arrival_ns.tolist() == [0, 500_000_000, 1_000_000_000]
    assert trace.prompt_tokens.tolist() == [20, 30, 10]
    simserve.write_trace(trace, tmp_path / "t.csv", "plain")
    assert simserve.load_trace(tmp_path / "t.csv").output_tokens.tolist() == [2, 0, 1]
    for wrong in (([0.0, 1.0], [1], [1]), ([0.0], [0], [1]), ([float("nan")], [1], [1]), ([], [], [])):
        with pytest.raises(TraceError):
            simserve.Trace.from_arrays(*wrong)


def test_every_example_of_the_page_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a line gives or prints stands in a comment behind it; `...` stands for anything."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        exec(block, names)
        printed = capsys.readouterr().out
        for line in block.splitlines():
            code, _, shown = line.strip().partition("  # ")
            if code.startswith("print("):
                found = printed.strip()
            elif shown[:1].isdigit() or shown.startswith(("True", "<", "Posix")):
                found = repr(eval(code, names))
            else:
                continue
            pattern = ".*".join(re.escape(part.strip()) for part in shown.split("..."))
            assert re.search(pattern, found), f"{code}: {found}"


def test_the_notebook_runs(tmp_path: Path) -> None:
    """Every cell, from the top, in a kernel of its own; none has stored output."""
    import nbformat
    from nbclient import NotebookClient

    book = nbformat.read(PAGE.parent / "first-steps.ipynb", as_version=4)
    cells = [cell for cell in book.cells if cell.cell_type == "code"]
    assert not any(cell.outputs for cell in cells)
    NotebookClient(book, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [
        out.data["text/html"] for cell in cells for out in cell.outputs if "text/html" in out.get("data", {})
    ]
    assert sum("<svg" in one for one in shown) >= 2
