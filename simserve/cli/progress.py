"""The progress line on stderr: simulated time, requests done, requests per second, time left."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from simserve.units import NS_PER_S


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
