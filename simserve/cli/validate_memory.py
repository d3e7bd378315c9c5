"""`simserve validate memory FILE`: the memory ledger against what real engines said at start."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simserve.cli.validate_options import AsJson

if TYPE_CHECKING:
    from simserve.cli.fitted import FittedTable
    from simserve.validate.memory import MemoryOutcome


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
    from simserve.validate import memory as compared
    from simserve.validate.memory_rows import read_memory_rows

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
            print(f"not judged: {one.row.text('run_id')}: {one.reason.partition('; supported:')[0]}")
    _print_summary(compared.summary(outcomes))


def _rooms(outcomes: list[MemoryOutcome]) -> FittedTable:
    """Return whether each start comes up, and its room for the KV cache."""
    table = _table("Ours / the engine's", "comes up", "KV cache", "error")
    for one in outcomes:
        error = "" if one.error_pct is None else f"{one.error_pct:+.1f} %"
        room = f"{_pair((one.ours, one.theirs))} GiB" if one.unit == "GiB" else _tokens(one)
        table.add_row(one.row.text("run_id"), f"{_yes(one.starts)} / {_yes(one.started)}", room, error)
    return table


def _terms(outcomes: list[MemoryOutcome]) -> FittedTable:
    """Return the terms of each start that the engine printed any of."""
    table = _table("Ours / the engine's, GiB per GPU", "weights", "torch peak", "non-torch", "graphs")
    for one in outcomes:
        if any(theirs is not None for _, theirs in one.terms.values()):
            table.add_row(one.row.text("run_id"), *map(_pair, one.terms.values()))
    return table


def _table(title: str, *columns: str) -> FittedTable:
    from simserve.cli.fitted import FittedTable

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
