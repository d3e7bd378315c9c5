"""What `simserve compare` prints for people: a table of measures, then the differences request by request."""

from __future__ import annotations

import os
import textwrap
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from simserve.cli.terminal import FittedTable
from simserve.metrics.measures import short_names
from simserve.report.run.headline import deployment_words, options_words, types_words
from simserve.report.study.words import size_headline
from simserve.report.words import money, number, percent

if TYPE_CHECKING:
    from simserve.metrics.comparison import StoredComparison


# Studies as short tables for the terminal.

MOST_ROWS = 30
MOST_SIZES = 3
"""Deployments of each kind: the answer stands above them, and should still be on the screen."""
PLAIN_WIDTH = 140
HEADING_WIDTH = 10


def print_sweep(study: dict[str, Any]) -> None:
    """Print the points of a sweep with the numbers that people look for first."""
    table = FittedTable(title=study["name"], box=None, padding=(0, 1, 0, 0))
    for name in short_names(study["paths"]).values():
        table.add_column(_heading(name), overflow="fold")
    for name in ("TTFT\np99\nms", "TPOT\np50\nms", "output\ntokens\n/s", "cost/M\ntokens", "SLO"):
        table.add_column(name, justify="right", no_wrap=True)
    done = [point for point in study["points"] if point["status"] == "done"]
    for point in done[:MOST_ROWS]:
        means = point["means"]
        table.add_row(
            *(str(point["settings"].get(path, "")) for path in study["paths"]),
            number(means["ttft_ms.p99"]),
            number(means["tpot_ms.p50"]),
            number(means["output_tokens_per_s"]),
            money(means["cost_per_million_output_tokens"], study["currency"]),
            slo_words(point),
        )
    console = _console()
    console.print(table)
    if len(done) > MOST_ROWS:
        console.print(f"... and {len(done) - MOST_ROWS:,} more points, all in the report")
    for status in ("dropped", "impossible"):
        points = [point for point in study["points"] if point["status"] == status]
        reasons = list(dict.fromkeys(point["reason"] for point in points))
        for reason in reasons[:5]:
            n = sum(point["reason"] == reason for point in points)
            console.print(f"{status}: {n:,} x {reason}", soft_wrap=True)


def _heading(name: str) -> str:
    """Return a name in short lines, broken after its underscores."""
    return "\n".join(textwrap.wrap(name.replace("_", "_ "), HEADING_WIDTH)).replace("_ ", "_")


def _console() -> Console:
    """Return the terminal; where there is none, lines wide enough for a table."""
    console = Console(highlight=False)
    asked = console.is_terminal or "COLUMNS" in os.environ
    return console if asked else Console(highlight=False, width=PLAIN_WIDTH)


def slo_words(point: dict[str, Any]) -> str:
    """Return the verdict with the estimate of the first target."""
    targets = point["targets"]
    if not targets or targets[0]["estimate"] is None:
        return "–"
    return f"{point['slo']} {percent(targets[0]['estimate'])}"


def print_size(study: dict[str, Any]) -> None:
    """Print the answer, what meets the SLO, and the best that misses."""
    console = _console()
    console.print(size_headline(study), style="bold", soft_wrap=True)
    for title, entries in (("meets the SLO", study["feasible"]), ("misses", study["missed"])):
        for one in entries[:MOST_SIZES]:
            why = one["shortfall"] or f"limited by {one['limited_by']}; breaks first: {one['breaks_first']}"
            price = money(one["price_per_hour"], study["currency"])
            chosen = options_words(one["settings"])
            name = deployment_words(one["pools"]) + types_words(one["settings"])
            console.print(
                f"{title}: {price}/h, {', '.join(filter(None, (name, chosen)))}: {why}", soft_wrap=True
            )
        _more(console, title, len(entries))
    for one in study["impossible"][:MOST_SIZES]:
        console.print(f"infeasible: {one['words']} because {one['because']}", soft_wrap=True)
    _more(console, "infeasible", len(study["impossible"]))
    work = study["work"]
    console.print(
        f"{work['simulated']:,} of {work['deployments']:,} deployments simulated "
        f"({work['stopped_early']:,} stopped early), {work['simulated_requests']:,} requests",
        soft_wrap=True,
    )


def _more(console: Console, title: str, entries: int) -> None:
    """Say how many lines were spared."""
    if entries > MOST_SIZES:
        console.print(f"{title}: {entries - MOST_SIZES:,} more, all in the report")


_LATENCIES = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "e2e_ms": "E2E"}


def print_comparison(found: StoredComparison) -> None:
    """Print the comparison, the answer first."""
    from simserve.report.compare.page import plain_answer
    from simserve.report.compare.settings import changes_words

    console = Console(highlight=False)
    console.print(plain_answer(found), markup=False)
    side_by_side = _measures(found.table, notes_below=False)
    fits = side_by_side.fits(console, console.width)
    console.print(side_by_side if fits else _measures(found.table, notes_below=True))
    for name, run in found.runs.items():
        if run.measured:
            console.print(_source(name, run.measured), markup=False, soft_wrap=True)
    changes = changes_words(found.table["changes"])
    for name in found.table["variants"]:
        if changes[name]:
            console.print(f"{name}: {'; '.join(changes[name])}", markup=False, soft_wrap=True)
    for name in found.table["variants"]:
        pairs = found.table["paired"][name]
        if pairs:
            console.print(_paired(found.table["base"], name, pairs))
        else:
            console.print(_unpaired(found, name), markup=False, soft_wrap=True)


def _measures(table: dict[str, Any], notes_below: bool) -> FittedTable:
    from simserve.report.compare.page import comparison_cells

    names = [table["base"], *table["variants"]]
    shown = FittedTable("whole run")
    for name in names:
        shown.add_column(escape(name), justify="right", overflow="fold")
    for row in table["measures"]:
        cells = comparison_cells(table, row)["cells"]
        texts = (
            cell["text"]
            + (f"\n{cell['interval']}" if cell["interval"] else "")
            + (_note(cell["note"], notes_below) if cell["note"] else "")
            for cell in cells
        )
        shown.add_row(row["label"], *texts)
    return shown


def _note(words: str, below: bool) -> str:
    return "\n(" + words.replace(", ", ",\n") + ")" if below else f" ({words})"


def _source(name: str, facts: dict[str, Any]) -> str:
    lines = [
        f"{name}: measured, {facts['format']}; {facts['completed']} of {facts['sent']} requests succeeded, "
        f"{facts['failed']} failed, {facts['left_out']} left out",
        *(f"{name}: {note}" for note in facts["notes"]),
    ]
    return "\n".join(lines)


def _paired(base: str, name: str, pairs: dict[str, Any]) -> FittedTable:
    from simserve.report.compare.settings import signed

    shown = FittedTable(title=escape(f"{name} - {base}, request by request"))
    for column in ("ms", "requests", "p5", "median", "p95", "mean", "shorter", "longer"):
        shown.add_column(column, justify="left" if column == "ms" else "right")
    for key, label in _LATENCIES.items():
        of = pairs[key]
        if of:
            values = (signed(of[p]) for p in ("p5", "p50", "p95", "mean"))
            shown.add_row(
                label, f"{of['requests']:,}", *values, f"{of['shorter']:.0%}", f"{of['longer']:.0%}"
            )
    return shown


def _unpaired(found: StoredComparison, name: str) -> str:
    both = (found.runs[name], found.runs[found.table["base"]])
    if any(run.measured and not run.measured["per_request"] for run in both):
        return f"{name}: not compared request by request: only statistics were recorded"
    return f"{name}: not compared request by request: its requests differ from those of {found.table['base']}"
