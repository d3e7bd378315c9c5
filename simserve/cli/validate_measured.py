"""`simserve validate measured DIR`: replay measured runs and print the errors."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simserve.cli.validate_options import AsJson, Overhead, Page, Profiles, Quiet

if TYPE_CHECKING:
    from simserve.cli.fitted import FittedTable
    from simserve.validate.measured_runs import MeasuredRun

SHOWN = ("ttft_mean", "ttft_p50", "ttft_p99", "tpot_mean", "e2e_mean", "e2e_p99")
"""Metrics in the table for people; --json has all."""


def measured(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder with experiments.csv and requests files.")
    ],
    only: Annotated[
        list[str] | None, typer.Option(help="Experiments whose id contains this; repeatable.")
    ] = None,
    overhead: Overhead = None,
    profiles: Profiles = [],  # noqa: B006
    page: Page = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Replay measured runs on the deployments that they name, and print the error of each metric.

    Runs whose clients gave up are compared by the number of failures. Where a run has a log of its steps,
    step times are compared too.

    Example: simserve validate measured path/to/vllm_measured --only codegen
    """
    from simserve.validate.measured_runs import read_runs

    runs = read_runs(folder, only or ())
    facts: dict[str, Any] = {"experiments": [], "median_ape": {}, "overloads": [], "steps": {}, "cold": {}}
    comparisons: list[Any] = []
    for run in runs:
        if not quiet:
            print(f"replaying {run.id}: {len(run):,} requests", file=sys.stderr)
        _compare(run, overhead, [str(folder) for folder in profiles], comparisons, facts)
    from simserve.validate.measured import as_json as plain

    facts |= plain(comparisons)
    if page is not None:
        from simserve.validate.page import measured_block, replace_block

        replace_block(page, "measured", measured_block(facts))
    if as_json:
        print(json.dumps(facts, indent=2))
    else:
        _print(facts)


def _compare(
    run: MeasuredRun,
    overhead: str | None,
    profiles: list[str],
    comparisons: list[Any],
    facts: dict[str, Any],
) -> None:
    """Replay one run and add what comes out of it."""
    from simserve.latency import TableLatency
    from simserve.validate import measured as compared
    from simserve.validate.measured_replay import deployment_of, replay
    from simserve.validate.measured_steps import binned_steps

    replayed = replay(run, overhead, profiles)
    if run.overloaded:
        facts["overloads"].append(compared.plain_overload(compared.overload(replayed)))
        return
    comparisons += compared.compare(replayed)
    if cold := compared.cold_to_warm(replayed):
        facts["cold"][run.id] = compared.plain_warming(cold)
    if run.steps_file is not None:
        latency = deployment_of(run, overhead, profiles).pools[0].latency
        assert isinstance(latency, TableLatency), "logged steps are those of one rank group"
        facts["steps"][run.id] = [
            {"decodes_from": one.low, "n": one.steps, "sim_ms": one.sim_ms, "real_ms": one.real_ms}
            | {"err_pct": one.error_pct}
            for one in binned_steps(run, latency)
        ]


def _print(facts: dict[str, Any]) -> None:
    from rich.console import Console

    console = Console()
    console.print(_errors(facts))
    for one in facts["overloads"]:
        failed = one["failed"]
        console.print(
            f"{one['id']}: clients gave up on {failed['sim']:.0f} requests, measured {failed['real']:.0f}; "
            f"the simulated run is {one['verdict']}"
        )
    for name, cold in facts["cold"].items():
        median = cold["median"]
        console.print(
            f"{name}: TTFT cold over warm: mean {cold['sim']:.2f}, measured {cold['real']:.2f}; "
            f"median {median['sim']:.2f}, measured {median['real']:.2f}"
        )
    for name, bins in facts["steps"].items():
        errors = [f"{one['decodes_from']}+: {one['err_pct']:+.1f} %" for one in bins if one["n"] >= 10]
        console.print(f"{name}: decode steps by batch size: {', '.join(errors)}")


def _errors(facts: dict[str, Any]) -> FittedTable:
    from simserve.cli.fitted import FittedTable

    names = [name for name in SHOWN if name in facts["median_ape"]]
    table = FittedTable("errors in %", *(name.replace("_", " ") for name in names))
    for one in facts["experiments"]:
        stage = "" if one["stage"] < 0 else f", stage {one['stage']}"
        errors = (f"{one['metrics'][name]['err_pct']:+.1f}" for name in names)
        table.add_row(one["id"] + stage, *errors)
    medians = (f"{facts['median_ape'][name]:.1f}" for name in names)
    table.add_row("median of absolute errors", *medians)
    return table
