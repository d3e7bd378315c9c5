"""The parts of an engine step as text: a table of kernels, and one bar that is cut up among them."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_lowercase
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simserve.latency import OpTime

_BAR_CELLS = 76
_SHOWN_SHARE = 0.005
"""Kernels below this share are drawn and listed together."""


def print_parts(parts: Sequence[OpTime], markdown: bool) -> None:
    """Print the kernels of a step, longest first, with their share."""
    total_us = sum(part.us for part in parts)
    cells = [
        (part.name, str(part.calls), f"{part.us / 1000:.3f}", f"{part.us / total_us:.1%}", part.provenance)
        for part in _longest_first(parts)
    ]
    cells.append(("step", "", f"{total_us / 1000:.3f}", "", ""))
    titles = ("kernel", "calls", "ms", "share", "from")
    if markdown:
        lines = [titles, ("---", "--:", "--:", "--:", "---"), *cells]
        print("\n".join("| " + " | ".join(line) + " |" for line in lines))
        return
    from rich.console import Console

    from simserve.cli.fitted import FittedTable

    table = FittedTable()
    for title in titles:
        table.add_column(title, justify="left" if title in ("kernel", "from") else "right", no_wrap=True)
    for line in cells:
        table.add_row(*line)
    Console().print(table)


def print_step(title: str, parts: Sequence[OpTime]) -> None:
    """Print a step: one bar in which each kernel has a letter, and the kernels of each letter."""
    from rich import box
    from rich.console import Console

    from simserve.cli.fitted import FittedTable

    total_us = sum(part.us for part in parts)
    shown, rest = _split(parts, total_us)
    table = FittedTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("", "kernel", "calls", "us", "share", "from"):
        table.add_column(name, justify="left" if name in ("", "kernel", "from") else "right", no_wrap=True)
    for letter, part in zip(ascii_lowercase, shown, strict=False):
        cells = (str(part.calls), f"{part.us:,.1f}", f"{part.us / total_us:.1%}", part.provenance)
        table.add_row(letter, part.name, *cells)
    if rest:
        rest_us, calls = sum(part.us for part in rest), sum(part.calls for part in rest)
        name = f"{len(rest)} more, each under {_SHOWN_SHARE:.1%}"
        kinds = {part.provenance for part in rest}
        origin = kinds.pop() if len(kinds) == 1 else "mixed"
        table.add_row(".", name, str(calls), f"{rest_us:,.1f}", f"{rest_us / total_us:.1%}", origin)
    console = Console()
    console.print(f"{title}: [bold]{total_us / 1000:,.3f} ms[/bold]", highlight=False)
    console.print(bar([part.us for part in shown], total_us), markup=False, highlight=False)
    console.print(table)
    console.print(_by_provenance(parts, total_us), highlight=False)


def bar(parts_us: Sequence[float], total_us: float, cells: int = _BAR_CELLS) -> str:
    """Return a bar of `cells` characters: `a` for the share of the first part, `b` of the next ...

    What the parts leave of the total is drawn as dots. Each part ends where the sum up to it does, rounded.
    """
    text, so_far = "", 0.0
    for letter, us in zip(ascii_lowercase, parts_us, strict=False):
        so_far += us
        text = text.ljust(round(cells * so_far / total_us), letter)
    return text.ljust(cells, ".")


def _split(parts: Sequence[OpTime], total_us: float) -> tuple[list[OpTime], list[OpTime]]:
    """Return the kernels to show, longest first, and those that are too short (or too many)."""
    ordered = _longest_first(parts)
    shown = [part for part in ordered if part.us >= _SHOWN_SHARE * total_us][: len(ascii_lowercase)]
    return shown, ordered[len(shown) :]


def _longest_first(parts: Sequence[OpTime]) -> list[OpTime]:
    return sorted((part for part in parts if part.us > 0), key=lambda part: -part.us)


def _by_provenance(parts: Sequence[OpTime], total_us: float) -> str:
    """Return the shares of the step by where its figures come from, largest first."""
    sums: dict[str, float] = {}
    for part in parts:
        sums[part.provenance] = sums.get(part.provenance, 0.0) + part.us
    shares = sorted(((us, name) for name, us in sums.items() if us > 0), reverse=True)
    return "of the time " + ", ".join(f"{us / total_us:.1%} {name}" for us, name in shares)
