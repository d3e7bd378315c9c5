"""`simserve validate published FILE`: simulate the rows of a table of published results."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simserve.cli.validate_options import AsJson, Overhead, Page, Profiles, Quiet

if TYPE_CHECKING:
    from simserve.cli.fitted import FittedTable
    from simserve.validate.published import RowOutcome
    from simserve.validate.published_row import Row


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

    from simserve.validate import published as compared

    wanted = [row for row in compared.read_rows(table) if not only or _named(row, only)]
    hidden = quiet or not sys.stderr.isatty()
    folders = [str(folder) for folder in profiles]
    processes = workers or os.cpu_count() or 1
    ran = compared.run_rows(wanted, table, overhead, folders, processes)
    console = Console(stderr=True)
    outcomes = list(track(ran, "simulating", len(wanted), console=console, transient=True, disable=hidden))
    if page is not None:
        from simserve.validate.page import published_block, replace_block

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
    from simserve.cli.fitted import FittedTable

    table = FittedTable("curve: median of absolute errors, %", "figures")
    for group, errors in medians.items():
        if errors:
            table.add_row(group, ", ".join(f"{name} {error:.1f}" for name, error in errors.items()))
    return table


def _table(outcomes: list[RowOutcome], prefix: str) -> FittedTable:
    """Return every figure; `prefix` is what the ids of all rows begin with."""
    from simserve.cli.fitted import FittedTable

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
