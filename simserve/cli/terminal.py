"""Tables and sentences that fit the terminal: nothing is cut, and no figure parts from its unit."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from simserve.errors import ScenarioError
from simserve.units import NS_PER_MS, NS_PER_S

# A window of simulated time as people write it: `10s:20s`, `500ms:`, `:2m`.

_UNITS_NS = {"ms": NS_PER_MS, "s": NS_PER_S, "m": 60 * NS_PER_S, "h": 3600 * NS_PER_S}
_TIME = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)")


def parse_window(text: str) -> tuple[int, int]:
    """Return (start_ns, end_ns); raises ScenarioError with what is allowed."""
    start, colon, end = text.partition(":")
    start_ns = 0 if not start else _time_ns(start, text)
    end_ns = 1 << 62 if not end else _time_ns(end, text)
    if not colon or start_ns >= end_ns:
        raise ScenarioError(
            f"--window {text}: give two times, the earlier first, such as 10s:20s, 500ms: or :2m"
        )
    return start_ns, end_ns


def _time_ns(word: str, text: str) -> int:
    found = _TIME.fullmatch(word.strip())
    if found is None:
        raise ScenarioError(
            f"--window {text}: {word!r} is no time; write a number with ms, s, m or h: 10s:20s"
        )
    return round(float(found[1]) * _UNITS_NS[found[2]])


# The progress line on stderr: simulated time, requests done, requests per second, time left.


class ProgressLine:
    """Draws one run after another; called with simulated ns, requests done, requests in all."""

    def __init__(self, progress: Progress) -> None:
        """Draw on `progress`, which is running."""
        self._progress = progress
        self._task = progress.add_task("building", total=None)
        self._name = ""

    def begin(self, name: str) -> None:
        """The next calls are about the run called `name` (empty: the only one)."""
        self._name = f"{name}: " if name else ""
        self._progress.reset(self._task, total=None, description=f"{self._name}starting")

    def __call__(self, now_ns: int, done: int, total: int) -> None:
        """Draw where the run is."""
        speed = self._progress.tasks[self._task].speed
        rate = f", {speed:,.0f}/s" if speed else ""
        text = f"{self._name}simulated {clock(now_ns)}, {done:,} of {total:,} requests{rate}"
        self._progress.update(self._task, completed=done, total=total, description=text)


@contextmanager
def shown_progress(quiet: bool) -> Iterator[ProgressLine | None]:
    """Give a progress line while the block runs; None if nobody would see it."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=16), TimeRemainingColumn(compact=True))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        yield ProgressLine(progress)


def clock(now_ns: int) -> str:
    """Write simulated time as h:mm:ss."""
    seconds = now_ns // NS_PER_S
    return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


LEAST_HEADING = 7
LEAST_WORDS = 8
"""Least widths of a column of words and of the heading of figures; figures are not folded at all."""


class FittedTable(Table):
    """A table that loses its frame where that is too wide, then folds its words, then becomes lines."""

    def __init__(self, *headers: str, title: str | None = None, **style: Any) -> None:
        super().__init__(title=title, title_justify="left", **style)
        for header in headers:
            self.add_column(header)

    def add_column(self, *header: Any, **style: Any) -> None:
        """Add a column that folds rather than cuts; see `rich.table.Table`."""
        super().add_column(*header, **{"overflow": "fold", **style})

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw what fits."""
        if self.fits(console, options.max_width):
            yield from super().__rich_console__(console, options)
            return
        if self.box is None:
            self.padding = (0, 1, 0, 0)
        else:  # whose dividers are spaces
            self.box, self.padding, self.pad_edge = box.SIMPLE_HEAD, (0, 0, 0, 0), False
        if self._narrow(options.max_width - len(self.columns) - 1):
            yield from super().__rich_console__(console, options)
        else:
            yield from self._as_lines()

    def fits(self, console: Console, width: int) -> bool:
        """Return whether nothing has to be folded for `width` cells."""
        wide = console.options.update(max_width=10_000)
        return Measurement.get(console, wide, self).maximum <= width

    def _narrow(self, room: int) -> bool:
        """Give every column its width out of `room` cells; false if even folded words do not fit."""
        widths, least = [], []
        for column in self.columns:
            heading, content = _width(column.header), max(map(_width, column.cells), default=0)
            figures = column.justify == "right"
            least.append(max(content, min(heading, LEAST_HEADING)) if figures else LEAST_WORDS)
            widths.append(least[-1] if figures else max(content, heading, LEAST_WORDS))
        if sum(least) > room:
            return False
        while sum(widths) > room:
            at = max(range(len(widths)), key=lambda i: (widths[i] > least[i], widths[i]))
            widths[at] -= 1
        for column, width in zip(self.columns, widths, strict=True):
            column.width, column.no_wrap = width, False
        return True

    def _as_lines(self) -> Iterator[Text]:
        """Yield the title, and each row as `first cell: heading value, heading value`."""
        if self.title:
            yield _text(self.title)
        for first, *others in zip(*(column.cells for column in self.columns), strict=True):
            named = zip(self.columns[1:], others, strict=True)
            parts = [f"{_flat(column)} {_text(cell)}".strip() for column, cell in named if str(_text(cell))]
            yield Text(f"{_text(first)}: {', '.join(parts)}".replace("\n", " "))


@dataclass(frozen=True)
class Prose:
    """A sentence, wrapped at words."""

    text: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw the lines."""
        held = re.sub(r"(?<=\d) (?=%|ms\b|s\b)", "\u00a0", self.text)
        lines = textwrap.wrap(held, options.max_width, break_long_words=False, break_on_hyphens=False)
        for line in lines:
            yield Text(line.replace("\u00a0", " "), no_wrap=True, overflow="fold")


def _text(cell: Any) -> Text:
    return cell if isinstance(cell, Text) else Text.from_markup(str(cell))


def _width(cell: Any) -> int:
    return max((line.cell_len for line in _text(cell).split("\n")), default=0)


def _flat(column: Column) -> str:
    return " ".join(_text(column.header).plain.split())
