"""Options that `simserve validate measured` and `published` have in common."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from simserve.validation.golden import Comparison, LogRefused


# What `simserve validate` prints for people, within 80 columns.

_WIDTH = 80
_MOST_SHOWN = 10
"""Differing logs whose first difference is shown."""
_HERE, _LOG = "here:", "log:"


def print_golden(compared: list[tuple[str, Comparison]], refused: list[tuple[str, LogRefused]]) -> None:
    """Print steps and equal steps by folder, where each differing log parts, and which were refused."""
    folders: dict[str, list[Comparison]] = {}
    for name, comparison in compared:
        folders.setdefault(name.rpartition("/")[0] or ".", []).append(comparison)
    width = min(40, max(len(folder) for folder in [*folders, "folder"]))
    print(f"{'folder':{width}}  {'files':>6}  {'steps':>8}  {'equal':>8}  files equal")
    for folder, comparisons in folders.items():
        _print_row(_cut(folder, width), comparisons, width)
    if len(folders) > 1:
        _print_row("all", [comparison for _, comparison in compared], width)
    parted = [(name, comparison) for name, comparison in compared if not comparison.equal]
    for name, comparison in parted[:_MOST_SHOWN]:
        _print_difference(name, comparison)
    if len(parted) > _MOST_SHOWN:
        print(f"\n{len(parted) - _MOST_SHOWN} more logs differ: use --json for all")
    if not parted and compared:
        print(f"Every step of {'every log that was replayed' if refused else 'every log'} is equal.")
    if refused:
        _print_refused(refused)


def _print_refused(refused: list[tuple[str, LogRefused]]) -> None:
    """List refused logs by reason."""
    by_reason: dict[str, list[str]] = {}
    for name, why in refused:
        by_reason.setdefault(why.reason, []).append(name)
    logs = "1 log was" if len(refused) == 1 else f"{len(refused):,} logs were"
    print(f"\n{logs} refused:")
    for reason, names in by_reason.items():
        print(fill(f"{reason}:", _WIDTH))
        for name in names:
            print(_cut(f"  {name}", _WIDTH))


def _print_row(label: str, comparisons: list[Comparison], width: int) -> None:
    steps = sum(comparison.steps for comparison in comparisons)
    equal = sum(comparison.steps_equal for comparison in comparisons)
    whole = sum(comparison.equal for comparison in comparisons)
    print(f"{label:{width}}  {len(comparisons):>6,}  {steps:>8,}  {equal:>8,}  {whole:,}")


def _print_difference(name: str, comparison: Comparison) -> None:
    first = comparison.first_difference
    assert first is not None
    print(f"\n{_cut(name, _WIDTH)}")
    print(
        f"differs at step {first.step}, after {comparison.steps_equal:,} equal steps of {comparison.steps:,}"
    )
    for field in first.ours:
        place, ours, theirs = _where(first.ours[field], first.theirs[field])
        print(_cut(f"  {field + place:<14} {_HERE:<5} {ours}", _WIDTH))
        print(_cut(f"  {'':<14} {_LOG:<5} {theirs}", _WIDTH))


def _where(ours: Any, theirs: Any) -> tuple[str, str, str]:
    """Return both sides as text; of two lists, from the first element that differs."""
    if not (isinstance(ours, list) and isinstance(theirs, list)):
        return "", json.dumps(ours), json.dumps(theirs)
    start = next((i for i, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), None)
    if start is None:
        start = min(len(ours), len(theirs))
    return f"[{start}:]", json.dumps(ours[start:]), json.dumps(theirs[start:])


def _cut(text: str, width: int) -> str:
    """Shorten a text that is wider than `width`."""
    return text if len(text) <= width else f"{text[: width - 3]}..."


Overhead = Annotated[
    str | None, typer.Option(help="Engine overhead: a name, or a file that `simserve calibrate` wrote.")
]
Profiles = Annotated[
    list[Path], typer.Option(help="Folder of kernel tables, searched before what ships; repeatable.")
]
Page = Annotated[
    Path | None, typer.Option(help="Page whose marked tables to replace, such as docs/fidelity.md.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress on stderr.")]
