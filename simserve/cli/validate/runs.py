"""`simserve validate memory FILE`: the memory ledger against what real engines said at start."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simserve.cli.validate.tables import AsJson, Overhead, Page, Profiles, Quiet

if TYPE_CHECKING:
    from simserve.cli.terminal import FittedTable
    from simserve.validation.measured_runs import MeasuredRun
    from simserve.validation.memory import MemoryOutcome
    from simserve.validation.published import RowOutcome
    from simserve.validation.published_row import Row


# `simserve validate measured DIR`: replay measured runs and print the errors.

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
    from simserve.validation.measured_runs import read_runs

    runs = read_runs(folder, only or ())
    facts: dict[str, Any] = {"experiments": [], "median_ape": {}, "overloads": [], "steps": {}, "cold": {}}
    comparisons: list[Any] = []
    for run in runs:
        if not quiet:
            print(f"replaying {run.id}: {len(run):,} requests", file=sys.stderr)
        _compare(run, overhead, [str(folder) for folder in profiles], comparisons, facts)
    from simserve.validation.measured import as_json as plain

    facts |= plain(comparisons)
    if page is not None:
        from simserve.validation.page import measured_block, replace_block

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
    from simserve.validation import measured as compared
    from simserve.validation.measured import binned_steps
    from simserve.validation.measured_replay import deployment_of, replay

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
    from simserve.cli.terminal import FittedTable

    names = [name for name in SHOWN if name in facts["median_ape"]]
    table = FittedTable("errors in %", *(name.replace("_", " ") for name in names))
    for one in facts["experiments"]:
        stage = "" if one["stage"] < 0 else f", stage {one['stage']}"
        errors = (f"{one['metrics'][name]['err_pct']:+.1f}" for name in names)
        table.add_row(one["id"] + stage, *errors)
    medians = (f"{facts['median_ape'][name]:.1f}" for name in names)
    table.add_row("median of absolute errors", *medians)
    return table


# `simserve validate published FILE`: simulate the rows of a table of published results.


def published(
    table: Annotated[Path, typer.Argument(metavar="FILE", help="Table of published results (CSV).")],
    only: Annotated[
        list[str] | None, typer.Option(help="Rows whose id or group contains this; repeatable.")
    ] = None,
    overhead: Overhead = None,
    profiles: Profiles = [],  # noqa: B006
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; default: one per CPU core.")] = None,
    page: Page = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Simulate each row as the deployment that it names, and print the error of each figure.

    Rows that cannot be run are listed with the reason.

    Example: simserve validate published path/to/nim_llm_benchmarking.csv
    """
    from rich.console import Console
    from rich.progress import track

    from simserve.validation import published as compared

    wanted = [row for row in compared.read_rows(table) if not only or _named(row, only)]
    hidden = quiet or not sys.stderr.isatty()
    folders = [str(folder) for folder in profiles]
    processes = workers or os.cpu_count() or 1
    ran = compared.run_rows(wanted, table, overhead, folders, processes)
    console = Console(stderr=True)
    outcomes = list(track(ran, "simulating", len(wanted), console=console, transient=True, disable=hidden))
    if page is not None:
        from simserve.validation.page import published_block, replace_block

        replace_block(page, table.stem, published_block(compared.as_json(outcomes)))
    if as_json:
        typer.echo(json.dumps(compared.as_json(outcomes), indent=2))
        return
    console = Console()
    console.print(_table(outcomes, f"{table.stem}-"))
    for reason, count in _reasons(outcomes).items():
        console.print(f"{count} rows not run: {reason}")
    console.print(_curves(compared.as_json(outcomes)["median_ape_by_group"]))
    for name, error in compared.medians(outcomes).items():
        console.print(f"median of absolute errors, {name}: {error:.1f} %")


def _named(row: Row, parts: list[str]) -> bool:
    return any(part in row["row_id"] or part in row.get("group", "") for part in parts)


def _curves(medians: dict[str, dict[str, float]]) -> FittedTable:
    """Return the median absolute error of each curve (one deployment)."""
    from simserve.cli.terminal import FittedTable

    table = FittedTable("curve: median of absolute errors, %", "figures")
    for group, errors in medians.items():
        if errors:
            table.add_row(group, ", ".join(f"{name} {error:.1f}" for name, error in errors.items()))
    return table


def _table(outcomes: list[RowOutcome], prefix: str) -> FittedTable:
    """Return every figure; `prefix` is what the ids of all rows begin with."""
    from simserve.cli.terminal import FittedTable

    table = FittedTable(pad_edge=False)
    table.add_column("row", no_wrap=True)
    table.add_column("group", overflow="fold")
    for name in ("figure", "sim", "real", "error"):
        table.add_column(name, no_wrap=True)
    for one in outcomes:
        row, group = one.row["row_id"].removeprefix(prefix), one.row.get("group", "")
        for name, pair in one.metrics.items():
            figures = (f"{pair.sim:.4g}", f"{pair.real:.4g}", f"{pair.error_pct:+.1f} %")
            table.add_row(row, group, name, *figures)
            row = group = ""
    return table


def _reasons(outcomes: list[RowOutcome]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for one in outcomes:
        if one.reason:
            counts[one.reason] = counts.get(one.reason, 0) + 1
    return counts


def memory(
    table: Annotated[Path, typer.Argument(metavar="FILE", help="Table of starts of engines (CSV).")],
    as_json: AsJson = False,
) -> None:
    """Compare memory with what real engines reported at start: KV cache, each term, whether they started.

    Models and GPUs that do not ship are looked for in configs/ and gpus/ beside the table. Errors are in
    per cent of the pool, or of 1 GiB if the pool is smaller. Rows that are not judged are listed with the
    reason.

    Example: simserve validate memory path/to/vllm_memory_runs.csv
    """
    from simserve.validation import memory as compared
    from simserve.validation.memory_start import read_memory_rows

    outcomes = [compared.judge(row, table.parent) for row in read_memory_rows(table)]
    if as_json:
        typer.echo(json.dumps(compared.as_json(outcomes), indent=2))
        return
    from rich.console import Console

    console = Console()
    judged = [one for one in outcomes if not one.reason]
    console.print(_rooms(judged), _terms(judged))
    for one in outcomes:
        if one.reason:
            print(f"not judged: {one.row.text('run_id')}: {one.reason}")
    _print_summary(compared.summary(outcomes))


def _rooms(outcomes: list[MemoryOutcome]) -> FittedTable:
    """Return whether each start comes up, and its room for the KV cache."""
    table = _validate_memory_table("Ours / the engine's", "comes up", "KV cache", "error")
    for one in outcomes:
        error = "" if one.error_pct is None else f"{one.error_pct:+.1f} %"
        room = f"{_pair((one.ours, one.theirs))} GiB" if one.unit == "GiB" else _tokens(one)
        table.add_row(one.row.text("run_id"), f"{_yes(one.starts)} / {_yes(one.started)}", room, error)
    return table


def _terms(outcomes: list[MemoryOutcome]) -> FittedTable:
    """Return the terms of each start that the engine printed any of."""
    table = _validate_memory_table(
        "Ours / the engine's, GiB per GPU", "weights", "torch peak", "non-torch", "graphs"
    )
    for one in outcomes:
        if any(theirs is not None for _, theirs in one.terms.values()):
            table.add_row(one.row.text("run_id"), *map(_pair, one.terms.values()))
    return table


def _validate_memory_table(title: str, *columns: str) -> FittedTable:
    from simserve.cli.terminal import FittedTable

    table = FittedTable(pad_edge=False, title=title)
    table.add_column("start", overflow="fold")
    for name in columns:
        table.add_column(name, no_wrap=True)
    return table


def _pair(pair: tuple[float | None, float | None]) -> str:
    return " / ".join("-" if value is None else f"{value:.2f}" for value in pair)


def _tokens(one: MemoryOutcome) -> str:
    return f"{one.ours:,.0f} / {one.theirs:,.0f} tokens"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _print_summary(facts: dict[str, Any]) -> None:
    print(f"{facts['judged']} of {facts['rows']} starts judged")
    for name, errors in {"all": facts["all"], **facts["by_group"]}.items():
        if errors["rows"]:
            print(
                f"{name}: {errors['rows']} pools, absolute error median {errors['median_pct']:.1f} %, "
                f"p90 {errors['p90_pct']:.1f} %"
            )
    for name, gap in facts["terms_gib"].items():
        print(
            f"{name.replace('_', ' ')}: ours minus the engine's, median {gap['median']:+.2f} GiB, "
            f"worst {gap['worst']:+.2f} GiB ({gap['rows']} starts)"
        )
    for key in ("wrongly_refused", "wrongly_accepted"):
        print(": ".join([f"{key.replace('_', ' ')} {len(facts[key])}", ", ".join(facts[key])]).rstrip(": "))
