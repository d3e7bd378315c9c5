"""`simserve run FILE`: simulate a scenario and write its result folder."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from simserve.cli import completion
from simserve.errors import ScenarioError

if TYPE_CHECKING:
    from simserve.deploy.build import Deployment
    from simserve.metrics import Summary
    from simserve.scenario import Scenario
    from simserve.scenario.load import LoadedScenario


def run(
    file: str = typer.Argument(
        autocompletion=completion.scenario_files,
        help="Scenario file, or one that ships, such as scenarios/demo.yaml.",
    ),
    out: Path | None = typer.Option(None, help="Result folder; default: reports/<the scenario's name>."),
    force: bool = typer.Option(False, "--force", help="Replace an existing result folder."),
    overrides: list[str] = typer.Option(
        [], "--set", metavar="PATH=VALUE", help="Change one value, such as pools.0.tp=2; may be repeated."
    ),
    check: bool = typer.Option(
        False,
        "--check",
        help="Only look: everything that is wrong, or the memory, the price and the time that it takes.",
    ),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress and no summary: only the path."),
    as_json: bool = typer.Option(False, "--json", help="Print the summary as JSON instead of a table."),
    timeline: bool = typer.Option(
        False, "--timeline", help="Also write timeline.json.gz: every engine step, for ui.perfetto.dev."
    ),
    window: str | None = typer.Option(
        None, metavar="FROM:TO", help="Simulated time that --timeline records, such as 10s:20s or 500ms:2m."
    ),
    no_advice: bool = typer.Option(
        False, "--no-advice", help="Do not look for changes that would help, which takes short runs."
    ),
    fail_on_slo: bool = typer.Option(
        False, "--fail-on-slo", help="Exit with 3 unless the SLO is met (missed, or inconclusive)."
    ),
) -> None:
    """Simulate a scenario; write report.html and its data to a folder, and print a summary.

    Examples:

    simserve run scenarios/demo.yaml

    simserve run mine.yaml --set workload.rate_scale=2 --set pools.0.replicas=3 --out reports/double

    simserve run mine.yaml --check

    simserve run scenarios/chunked_prefill.yaml

    simserve run scenarios/demo.yaml --timeline --window 10s:20s

    Variants (`compare`) are all run, and the report compares them.

    Exit codes: 0 done; 1 an internal error; 2 the input is wrong; 3 done, but a run
    completed nothing, is overloaded or too short to tell, or (with --fail-on-slo) does not meet the SLO.
    """
    from simserve.cli.tables import warnings_of
    from simserve.cli.terminal import parse_window, shown_progress
    from simserve.deploy.build import build_all
    from simserve.deploy.simulated import write_all
    from simserve.metrics.store import check_target
    from simserve.scenario import load_scenario
    from simserve.study.advice import advise

    if window is not None and not timeline:
        raise ScenarioError("--window says what --timeline records: give --timeline too")
    span = parse_window(window or ":") if timeline else None
    loaded = load_scenario(file, overrides)
    if check:
        _check(loaded)
        return
    folder = out or Path("reports") / slug(loaded.scenario.name)
    check_target(folder, force)
    _check_parent(folder)
    if fail_on_slo:
        for one in (loaded, *loaded.variants.values()):
            _require_slo(one.scenario, file)
    with shown_progress(quiet) as progress:
        deployments = build_all(loaded)
        found = None if no_advice or len(deployments) > 1 else advise
        summaries = write_all(deployments, folder, force, _command(file, overrides), progress, span, found)
    _print_results(deployments, summaries, folder / "report.html", as_json, quiet, timeline)
    if not quiet:
        _name_studies(loaded.scenario, file)
    _warn_of_slo(deployments)
    problems = []
    for name, summary in summaries.items():
        prefix = f"{name}: " if len(summaries) > 1 else ""
        for warning in summary.warnings:
            typer.echo(f"warning: {prefix}{warning}", err=True)
        problems += [prefix + line for line in warnings_of(summary, fail_on_slo)]
    for problem in problems:
        typer.echo(problem, err=True)
    if problems:
        raise typer.Exit(3)


def _check(loaded: LoadedScenario) -> None:
    """Build all deployments and print what they would simulate, at what price, and for how long."""
    from simserve.cli.check import built, check_lines, duration_line

    deployments = built(loaded)
    for name, deployment in deployments.items():
        for line in check_lines(name, deployment):
            typer.echo(line)
    typer.echo(duration_line(deployments))
    _warn_of_slo(deployments)


def _warn_of_slo(deployments: dict[str, Deployment]) -> None:
    """Warn of limits that no request can meet."""
    from simserve.study.bounds import out_of_reach

    whose: dict[str, list[str]] = {}
    for name, deployment in deployments.items():
        for line in out_of_reach(deployment):
            whose.setdefault(line, []).append(name)
    for line, names in whose.items():
        some = f"{', '.join(names)}: " if len(names) < len(deployments) else ""
        typer.echo(f"warning: {some}{line}", err=True)


def slug(name: str) -> str:
    """Return a folder name for a scenario's name: 'PD split, 8 H100' -> 'pd-split-8-h100'."""
    words = "".join(char if char.isascii() and char.isalnum() else " " for char in name.lower()).split()
    return "-".join(words) or "run"


def _check_parent(folder: Path) -> None:
    """Refuse a folder that could not be made, before simulating."""
    parent = next(parent for parent in folder.absolute().parents if parent.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise ScenarioError(f"{folder}: cannot be made, {parent} is not a folder that can be written to")


def _command(file: str, overrides: list[str]) -> str:
    """Return the command that remakes the run, without machine paths."""
    name = Path(file).name if Path(file).is_absolute() else file
    return shlex.join(["simserve", "run", name, *(part for text in overrides for part in ("--set", text))])


def _name_studies(scenario: Scenario, file: str) -> None:
    """Say which commands the blocks of the scenario belong to that a single run leaves aside."""
    from simserve.scenario.spec import STUDIES

    for study in STUDIES:
        if getattr(scenario, study) is not None:
            command = shlex.join(["simserve", study, file])
            typer.echo(
                f"note: `run` simulates the scenario once; its {study}: block is for {command}", err=True
            )


def _require_slo(scenario: Scenario, file: str) -> None:
    if scenario.slo is None or not (scenario.slo.limits() or scenario.slo.percentiles):
        raise ScenarioError(
            f"{file}: --fail-on-slo needs limits in the scenario, such as slo: {{ttft_ms: 1000}}"
        )


def _print_results(
    deployments: dict[str, Deployment],
    summaries: dict[str, Summary],
    page: Path,
    as_json: bool,
    quiet: bool,
    timeline: bool,
) -> None:
    from rich.console import Console

    from simserve.cli.check import columns_lines
    from simserve.cli.tables import comparison_table, replication_lines, summary_table
    from simserve.deploy.manifest import manifest_of
    from simserve.metrics.store import canonical_json
    from simserve.report.run.headline import taken

    if as_json:
        found = {name: summary.to_dict() for name, summary in summaries.items()}
        print(canonical_json(found if len(found) > 1 else next(iter(found.values()))), end="")
        return
    if quiet:
        print(page)
        return
    scenario = next(iter(deployments.values())).loaded.scenario
    console = Console(highlight=False)
    if len(summaries) > 1:
        from simserve.metrics.comparison import read_comparison
        from simserve.report.compare.page import plain_answer

        compared = read_comparison(page.parent)
        assert compared is not None  # it has just been written
        console.print(plain_answer(compared), markup=False)
        console.print(comparison_table(scenario.name, summaries))
        for line in replication_lines(summaries[scenario.base_name].replications):
            console.print(line)
    else:
        console.print(summary_table(scenario, summaries[scenario.base_name]))
    base = manifest_of(deployments[scenario.base_name], "")
    for line in dict.fromkeys((*taken(base), *columns_lines(base["trace"]))):
        console.print(line)
    if scenario.published:
        from simserve.cli.tables import published_table

        console.print(published_table(page.parent))
    console.print(f"Report: {page}", soft_wrap=True)
    if timeline:
        console.print(
            f"Timeline: {page.parent / 'timeline.json.gz'} (open it in ui.perfetto.dev)", soft_wrap=True
        )
