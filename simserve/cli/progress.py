"""The progress line on stderr: simulated time, requests done, requests per second, time left."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from simserve.units import NS_PER_S

Report = Callable[[int, int, int], None]
"""Called with simulated ns, requests done, requests in all."""


@contextmanager
def shown_progress(quiet: bool) -> Iterator[Report | None]:
    """Give a callable that draws progress while the block runs; None if nobody would see it."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=16), TimeRemainingColumn(compact=True))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("building", total=None)

        def report(now_ns: int, done: int, total: int) -> None:
            speed = progress.tasks[task].speed
            rate = f", {speed:,.0f}/s" if speed else ""
            text = f"simulated {clock(now_ns)}, {done:,} of {total:,} requests{rate}"
            progress.update(task, completed=done, total=total, description=text)

        yield report


def clock(now_ns: int) -> str:
    """Write simulated time as h:mm:ss."""
    seconds = now_ns // NS_PER_S
    return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
