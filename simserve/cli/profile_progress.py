"""Progress of a profile run on stderr: cases done, time left, what is being measured."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn


@contextmanager
def shown(quiet: bool) -> Iterator[Callable[[int, int, float, str], None] | None]:
    """Give a progress line while the block runs; None if nobody would see it."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    columns = (
        TextColumn("{task.completed} of {task.total}"),
        BarColumn(bar_width=16),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("starting", total=None)

        def draw(done: int, planned: int, left_s: float, case: str) -> None:
            text = f"{max(0, round(left_s))} s left, {case}"
            progress.update(task, completed=done, total=planned, description=text)

        yield draw
