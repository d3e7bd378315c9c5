"""Progress of a profile run on stderr: cases done, time left, what is being measured."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column


@contextmanager
def shown(quiet: bool) -> Iterator[Callable[[int, int, float, str], None] | None]:
    """Give a progress line while the block runs; None if nobody would see it."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    bar = BarColumn(bar_width=12, table_column=Column(min_width=12))
    columns = (bar, TextColumn("{task.description}", table_column=Column(no_wrap=True)))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("measuring bandwidth and peaks of the machine", total=None)

        def draw(done: int, planned: int, left_s: float, case: str) -> None:
            text = f"{done} of {planned}, {max(0, round(left_s))} s left, {case}"
            progress.update(task, completed=done, total=planned, description=text)

        yield draw
