"""`simserve run FILE`: simulate a scenario and write its result folder."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from simserve.errors import ScenarioError

if TYPE_CHECKING:
    from simserve.metrics import Summary
    from simserve.scenario import Scenario


def run(
    file: str = typer.Argument(help="Scenario file, or one that ships, such as scenarios/demo.yaml."),
    out: Path | None = typer.Option(None, help="Result folder; default: reports/<the scenario's name>."),
    force: bool = typer.Option(False, "--force", help="Replace an existing result folder."),
    overrides: list[str] = typer.Option(
        [], "--set", metavar="PATH=VALUE", help="Change one value, such as pools.0.tp=2; may be repeated."
    ),
    quiet: bool = typer.Option(False, "--quiet", "-q", help="No progress and no summary: only the path."),
    as_json: bool = typer.Option(False, "--json", help="Print the summary as JSON instead of a table."),
    fail_on_slo: bool = typer.Option(
        False, "--fail-on-slo", help="Exit with 3 if fewer requests meet the SLO than slo.attainment asks."
    ),
) -> None:
    """Simulate a scenario; write report.html and its data to a folder, print a summary and the path.

    Examples:

    simserve run scenarios/demo.yaml

    simserve run mine.yaml --set workload.rate_scale=2 --set pools.0.replicas=3 --out reports/double

    Exit codes: 0 done; 1 simserve is broken; 2 the input is wrong; 3 done, but nothing completed, or the
    queue grew until the end, or (with --fail-on-slo) the SLO was missed.
    """
    from simserve.cli.progress import shown_progress
    from simserve.cli.verdict import warnings_of
    from simserve.metrics import write_results
    from simserve.metrics.store import canonical_json, check_target
    from simserve.report import write_report
    from simserve.scenario import build, load_scenario

    loaded = load_scenario(file, overrides)
    folder = out or Path("reports") / slug(loaded.scenario.name)
    check_target(folder, force)
    _check_parent(folder)
    if fail_on_slo:
        _require_slo(loaded.scenario, file)
    with shown_progress(quiet) as progress:
        deployment = build(loaded)
        result = deployment.simulate(progress)
    summary = deployment.summarize(result)
    manifest = deployment.manifest(_command(file, overrides))
    write_results(
        folder, result, summary, deployment.resolved_yaml(), manifest, slo=deployment.slo, force=force
    )
    page = write_report(folder)
    if as_json:
        print(canonical_json(summary.to_dict()), end="")
    elif quiet:
        print(page)
    else:
        _print_table(loaded.scenario, summary, page)
    for warning in summary.warnings:
        typer.echo(f"warning: {warning}", err=True)
    problems = warnings_of(summary, loaded.scenario.slo if fail_on_slo else None)
    for problem in problems:
        typer.echo(problem, err=True)
    if problems:
        raise typer.Exit(3)


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


def _require_slo(scenario: Scenario, file: str) -> None:
    if scenario.slo is None or not scenario.slo.limits():
        raise ScenarioError(
            f"{file}: --fail-on-slo needs limits in the scenario, such as slo: {{ttft_ms: 1000}}"
        )


def _print_table(scenario: Scenario, summary: Summary, page: Path) -> None:
    from rich.console import Console

    from simserve.cli.summary_table import summary_table

    console = Console(highlight=False)
    console.print(summary_table(scenario, summary))
    console.print(f"Report: {page}", soft_wrap=True)
