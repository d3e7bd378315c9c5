"""What `simserve compare` prints for people: a table of measures, then the differences request by request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from simserve.cli.fitted import FittedTable

if TYPE_CHECKING:
    from simserve.metrics.comparison import StoredComparison

_LATENCIES = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "e2e_ms": "E2E"}


def print_comparison(found: StoredComparison) -> None:
    """Print the comparison, the answer first."""
    from simserve.report.compare_page import plain_answer
    from simserve.report.difference_words import changes_words

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
    from simserve.report.compare_page import comparison_cells

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
    from simserve.report.difference_words import signed

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
