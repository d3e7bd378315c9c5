"""`simserve validate measured DIR`: replay measured runs and print the errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table


def measured(
    folder: Annotated[Path, typer.Argument(help="Folder with experiments.csv and requests files.")],
    only: Annotated[
        list[str] | None, typer.Option(help="Experiments whose id contains this; repeatable.")
    ] = None,
    overhead: Annotated[
        str | None, typer.Option(help="Engine overhead: a name, or a file that `simserve calibrate` wrote.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Replay measured runs on the deployments that they name, and print the error of each metric.

    Example: simserve validate measured path/to/vllm_measured --only codegen
    """
    from simserve.validate import measured as compared
    from simserve.validate.measured_replay import replay
    from simserve.validate.measured_runs import read_runs

    comparisons = []
    for run in read_runs(folder, only or ()):
        if run.overloaded:
            continue
        typer.echo(f"replaying {run.id}: {len(run):,} requests ...", err=True)
        comparisons += compared.compare(replay(run, overhead))
    plain = compared.as_json(comparisons)
    if as_json:
        typer.echo(json.dumps(plain, indent=2))
    else:
        Console().print(_table(comparisons, plain["median_ape"]))


def _table(comparisons: list, medians: dict[str, float]) -> Table:
    table = Table("experiment", "stage", "metric", "sim", "real", "error")
    for one in comparisons:
        for name, pair in one.metrics.items():
            scale = 1 if name == "requests_per_s" else 1000
            stage = "all" if one.stage < 0 else str(one.stage)
            table.add_row(
                one.id,
                stage,
                name,
                f"{pair.sim * scale:.2f}",
                f"{pair.real * scale:.2f}",
                f"{pair.error_pct:+.1f} %",
            )
    for name, error in medians.items():
        table.add_row("median of absolute errors", "all", name, "", "", f"{error:.1f} %")
    return table
