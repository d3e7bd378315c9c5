"""`simserve run` on a scenario with variants: its folder, its exit code, and each run as if it were alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from simserve.deploy.build import Deployment
from tests.cli.conftest import SMALL

Call = Callable[..., Any]

RUN = {
    "requests.parquet",
    "timeline.parquet",
    "gaps.parquet",
    "summary.json",
    "scenario.resolved.yaml",
    "manifest.json",
}
VARIANTS = """\
compare:
  few: {engine: {max_num_seqs: 2}}
  sglang: {engine: sglang-0.5.23, slo: null}
  two: {pools: [{name: all, gpu: h100_sxm, replicas: 2}]}
"""


@pytest.fixture
def both(small: Path) -> Path:
    """The small scenario with variants."""
    small.write_text(SMALL + VARIANTS, encoding="utf-8")
    return small


def files(folder: Path) -> dict[str, bytes]:
    found = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def test_the_folder_holds_the_base_the_variants_and_one_report(both: Path, simserve: Call) -> None:
    done = simserve("run", both, "--out", "out")
    assert done.exit_code == 0, done.output
    names = [f"variants/{name}/{file}" for name in ("few", "sglang", "two") for file in RUN]
    assert set(files(Path("out"))) == {*RUN, *names, "report.html", "compare.json"}
    for name in ("base", "few", "sglang", "two"):
        assert name in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines())


def cells(stdout: str, name: str) -> list[str]:
    """Return the cells of a run's row in the printed table."""
    (row,) = (line for line in stdout.splitlines() if line.startswith(f"│ {name} "))
    return [cell.strip() for cell in row.strip("│").split("│")]


def test_the_table_says_who_met_the_slo_and_which_tokens_it_counts(both: Path, simserve: Call) -> None:
    """40 requests show no 99 %: those that are all good are inconclusive."""
    both.write_text(SMALL.replace("tpot_ms: 25", "tpot_ms: 6.9") + VARIANTS, encoding="utf-8")
    done = simserve("run", both, "--out", "out")
    outcomes = {}
    for name, folder in (("base", "."), ("few", "variants/few"), ("two", "variants/two")):
        found = json.loads(Path("out", folder, "summary.json").read_text())
        judged = found["slo_verdict"]
        share, tokens = f"{judged['kept']:.1%}", f"{found['rates']['output_tokens_per_s']:,.0f}"
        assert cells(done.stdout, name)[-3:] == [tokens, share, "100%"]
        outcomes[name] = judged["outcome"]
    assert len(set(outcomes.values())) > 1, "a limit between the runs"
    assert all(word in done.stdout for word in outcomes.values())
    assert "99%" in done.stdout, "the target"
    assert cells(done.stdout, "sglang")[-2:] == ["-", "100%"], "it has no SLO"
    assert "output" in done.stdout
    both.write_text(SMALL.replace("slo:", "# slo:") + VARIANTS, encoding="utf-8")
    assert "SLO" not in simserve("run", both, "--out", "without").stdout


def test_changes_are_told_in_the_order_of_the_variants(both: Path, simserve: Call) -> None:
    more = VARIANTS.replace("  few:", "  zwei: {pools: [{name: all, gpu: h100_sxm, replicas: 2}]}\n  few:")
    both.write_text(SMALL + more, encoding="utf-8")
    simserve("run", both, "--out", "out")
    told = [
        line.partition(":")[0] for line in simserve("compare", "out").stdout.splitlines() if " → " in line
    ]
    assert told == ["zwei", "few", "sglang", "two"]


@pytest.mark.parametrize(
    ("folder", "options"),
    [
        ("", []),
        ("variants/few", ["engine.max_num_seqs=2"]),
        ("variants/sglang", ["engine=sglang-0.5.23", "slo=null"]),
        ("variants/two", ["pools.0.replicas=2"]),
    ],
)
def test_each_run_is_as_if_it_were_alone(both: Path, simserve: Call, folder: str, options: list[str]) -> None:
    simserve("run", both, "--out", "out")
    both.write_text(SMALL, encoding="utf-8")
    simserve(
        "run",
        both,
        "--no-advice",
        "--out",
        "alone",
        *(part for option in options for part in ("--set", option)),
    )
    for file in RUN - {"scenario.resolved.yaml", "manifest.json"}:  # they name the comparison
        assert (Path("out", folder, file)).read_bytes() == Path("alone", file).read_bytes(), file


def test_same_inputs_give_the_same_bytes(both: Path, simserve: Call) -> None:
    simserve("run", both, "--out", "a")
    simserve("run", both, "--out", "b")
    assert files(Path("a")) == files(Path("b"))


def test_the_resolved_scenario_gives_the_same_comparison(both: Path, simserve: Call) -> None:
    simserve("run", both, "--out", "a", "--set", "engine.max_num_batched_tokens=512")
    again = simserve("run", "a/scenario.resolved.yaml", "--out", "b")
    assert again.exit_code == 0, again.output
    first, second = files(Path("a")), files(Path("b"))
    naming_the_command = {name for name in first if name.endswith(("manifest.json", "report.html"))}
    for name in first.keys() - naming_the_command:
        assert first[name] == second[name], name
    resolved = YAML(typ="safe").load(Path("a/scenario.resolved.yaml"))
    assert resolved["compare"]["few"]["pools"][0]["engine"]["max_num_batched_tokens"] == 512


def test_a_variants_own_resolved_scenario_is_a_scenario(both: Path, simserve: Call) -> None:
    simserve("run", both, "--out", "a")
    again = simserve("run", "a/variants/few/scenario.resolved.yaml", "--out", "b")
    assert again.exit_code == 0, again.output
    assert Path("a/variants/few/requests.parquet").read_bytes() == Path("b/requests.parquet").read_bytes()


def test_json_holds_every_summary(both: Path, simserve: Call) -> None:
    done = simserve("run", both, "--json", "--out", "out")
    found = json.loads(done.stdout)
    assert set(found) == {"base", "few", "sglang", "two"}
    assert found["few"] == json.loads(Path("out/variants/few/summary.json").read_text())


def test_one_unstable_variant_is_worth_exit_code_3(small: Path, simserve: Call) -> None:
    small.write_text(SMALL + "compare:\n  one: {engine: {max_num_seqs: 1}}\n  idle: {}\n", encoding="utf-8")
    options = ["workload.synthetic.requests=300", "workload.synthetic.arrivals.rate_per_s=20"]
    done = simserve("run", small, "--out", "out", "--set", options[0], "--set", options[1])
    assert done.exit_code == 3
    assert done.stderr.startswith("one: unstable")
    assert "idle" not in done.stderr
    assert Path("out/report.html").is_file()


def test_fail_on_slo_asks_every_run_for_limits(both: Path, simserve: Call) -> None:
    done = simserve("run", both, "--out", "out", "--fail-on-slo")
    assert done.exit_code == 2
    assert not Path("out").exists()


def test_nothing_half_written_when_a_variant_breaks(
    both: Path, simserve: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    simserve("run", both, "--out", "runs/out")
    before = files(Path("runs/out"))
    simulate = Deployment.simulate

    def broken(self: Deployment, progress: Any = None) -> Any:
        if self.loaded.scenario.name.endswith("two"):
            raise RuntimeError("planted")
        return simulate(self, progress)

    monkeypatch.setattr(Deployment, "simulate", broken)
    done = simserve("run", both, "--out", "runs/out", "--force", "--set", "seed=9")
    assert done.exit_code == 1
    assert files(Path("runs/out")) == before
    assert [path.name for path in Path("runs").iterdir()] == ["out"]
    assert simserve("run", both, "--out", "new/deep/out").exit_code == 1
    assert not Path("new").exists()


@pytest.mark.parametrize("place", ["variants/few/notes.txt", "variants/mine/notes.txt", "variants/notes.txt"])
def test_force_spares_foreign_files(both: Path, simserve: Call, place: str) -> None:
    simserve("run", both, "--out", "out")
    note = Path("out", place)
    note.parent.mkdir(exist_ok=True)
    note.write_text("mine")
    done = simserve("run", both, "--out", "out", "--force")
    assert done.exit_code == 2
    assert place in done.stderr
    assert note.read_text() == "mine"


def test_force_replaces_a_comparison_by_a_single_run(both: Path, simserve: Call) -> None:
    simserve("run", both, "--out", "out")
    both.write_text(SMALL, encoding="utf-8")
    assert simserve("run", both, "--out", "out", "--force").exit_code == 0
    assert set(files(Path("out"))) == {*RUN, "report.html"}


def test_outputs_hold_no_machine_path(both: Path, simserve: Call) -> None:
    simserve("run", both, "--out", "out")
    for name, data in files(Path("out")).items():
        assert str(both.parent).encode() not in data, name
        assert str(Path(__file__).parents[2]).encode() not in data, name


def test_report_makes_the_same_page_again(both: Path, simserve: Call) -> None:
    simserve("run", both, "--out", "out")
    page = Path("out/report.html").read_bytes()
    Path("out/report.html").unlink()
    assert simserve("report", "out").exit_code == 0
    assert Path("out/report.html").read_bytes() == page
