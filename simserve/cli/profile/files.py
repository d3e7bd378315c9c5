"""`simserve profile import`: measurements made by others, turned into our tables.

A command per origin, because each takes something else and names its licence; the rest they share.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simserve.cli.help import App
from simserve.cli.profile.run import split_list
from simserve.cli.writing import refuse_to_overwrite

if TYPE_CHECKING:
    from simserve.cli.terminal import FittedTable
    from simserve.profiler.checking.check import Check


# `simserve profile check`: what a measured profile is worth, and what to measure next.

SHOWN = 12
"""Suspicious rows printed; the page has all of them."""


def check(
    folder: Annotated[Path, typer.Argument(help="Folder with <gpu>/<op>.parquet, as `profile run` writes.")],
    gpu: Annotated[str, typer.Option("--gpu", help="Which GPU, if the folder holds several.")] = "",
    models: Annotated[
        list[str], typer.Option("--models", help="Model to cover; may be repeated, or with commas.")
    ] = ["llama-3.1-8b"],  # noqa: B006
    tp: Annotated[int, typer.Option(min=1, help="Tensor parallelism of the models.")] = 1,
    dtype: Annotated[
        str, typer.Option(help="Type of the weights (default: bf16, else what was measured).")
    ] = "",
    html: Annotated[Path | None, typer.Option(help="Also write a page to this file.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the page if it exists.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Check a profile: coverage of models, expected errors, odd rows, agreement with the shipped tables.

    Example: simserve profile check profiles --models llama-3.1-70b --tp 8 --html check.html
    """
    from rich.console import Console

    from simserve.profiler.checking.check import check_profile

    refuse_to_overwrite(html, force)
    names = split_list(models)
    with Console(stderr=True).status("reading the tables") as status:
        found = check_profile(folder, gpu, names, tp, dtype, status.update)
    if as_json:
        print(json.dumps(found.plain(), indent=2))
    else:
        _print(found)
    if html is not None:
        from simserve.report.profile_page import write_check_page

        options = {"--gpu": gpu, "--models": ",".join(names), "--tp": str(tp), "--dtype": dtype}
        given = [part for option in options.items() if option[1] for part in option]
        command = shlex.join(["simserve", "profile", "check", str(folder), *given, "--html", str(html)])
        write_check_page(found.plain(), command, html)
        print(html, file=sys.stderr)


def _print(found: Check) -> None:
    from rich.console import Console

    console = Console()
    for model, steps in found.coverage.items():
        table = _table(f"{model} on {found.gpu}", "step", "ms", "measured", "interpolated", "rest")
        for step in steps:
            shares = step.shares
            rest = shares["extrapolated"] + shares["analytic"]
            cells = (shares["measured"], shares["interpolated"], rest)
            table.add_row(step.step, f"{step.ms:.2f}", *(f"{share:.0%}" for share in cells))
        console.print(table)
    if found.held_out:
        table = _table("Predicting a point that is left out", "operation", "points", "median error", "p95")
        for one in found.held_out:
            table.add_row(one.op, str(one.points), f"{one.median:.1%}", f"{one.p95:.1%}")
        console.print(table)
    if found.rules:
        table = _table("The simulator's rules", "rule", "calls", "ratio", "median error", "p95")
        for rule, calls, ratio, median, p95 in found.rules:
            table.add_row(rule, str(calls), f"{ratio:.2f}", f"{median:.1%}", f"{p95:.1%}")
        console.print(table)
    if found.agreements:
        table = _table("Against the shipped tables", "operation", "shapes", "ours / theirs", "p5 to p95")
        for one in found.agreements:
            table.add_row(one.op, str(one.rows), f"{one.median:.2f}", f"{one.p5:.2f} to {one.p95:.2f}")
        console.print(table)
    for title, lines in (
        (f"{len(found.suspects)} odd rows", [f"{op} {row}: {why}" for op, row, why in found.suspects]),
        (f"{len(found.not_timed)} kernels not timed", found.not_timed),
        ("To measure next", found.next),
    ):
        if lines:
            console.print(f"\n[bold]{title}[/bold]")
            for line in lines[:SHOWN]:
                console.print(f"- {line}", highlight=False, markup=False)
            if len(lines) > SHOWN:
                console.print(f"  and {len(lines) - SHOWN} more (see --html or --json)")


def _table(title: str, first: str, *others: str) -> FittedTable:
    from simserve.cli.terminal import FittedTable

    table = FittedTable(title=title)
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right")
    return table


app = App(no_args_is_help=True, help="Import measurements made by others.")


_Out = Annotated[Path, typer.Option("--out", help="Folder to write <gpu>/<op>.parquet into.")]
_Gpu = Annotated[list[str], typer.Option("--gpu", help="GPU to import; may be repeated (default: all).")]
_Force = Annotated[bool, typer.Option("--force", help="Replace tables that exist.")]


@app.command()
def aiconfigurator(
    source: Annotated[
        str, typer.Argument(help="A wheel of aiconfigurator-core, an unpacked folder, or 'installed'.")
    ],
    out: _Out,
    gpu: _Gpu = [],  # noqa: B006
    force: _Force = False,
) -> None:
    """Import the kernel tables of aiconfigurator-core (Apache-2.0, NVIDIA CORPORATION & AFFILIATES).

    Example: simserve profile import aiconfigurator installed --out my_profiles --gpu h100_sxm
    """
    from simserve.latency.importing.aiconfigurator import import_aiconfigurator

    _import(out, force, import_aiconfigurator(source, out, list(gpu)))


@app.command()
def llmservingsim(
    source: Annotated[
        Path, typer.Argument(help="Folder of files such as rtx4090_llama-3.1-8b_tp1_attention.csv.gz.")
    ],
    out: _Out,
    gpu: _Gpu = [],  # noqa: B006
    force: _Force = False,
) -> None:
    """Import layer times of LLMServingSim's profiler (MIT): products and attention of one model and GPU each.

    Example: simserve profile import llmservingsim measurements --out my_profiles --gpu rtx_4090
    """
    from simserve.latency.importing.llmservingsim import import_llmservingsim

    _import(out, force, import_llmservingsim(source, out, list(gpu)))


def _import(out: Path, force: bool, tables: Iterable[tuple[str, str, int]]) -> None:
    """Let the importer write its tables, unless tables are there already; `tables` does nothing before."""
    refuse_to_overwrite(next(iter(sorted(out.glob("*/*.parquet"))), None), force)
    for name, op, rows in tables:
        print(f"{name}/{op}: {rows} rows", file=sys.stderr)
    print(out)
