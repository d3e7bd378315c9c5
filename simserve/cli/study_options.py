"""What the commands `sweep`, `capacity` and `size` have in common: options, folder, progress."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from simserve.cli import completion, writing

if TYPE_CHECKING:
    from simserve.study.campaign import Counts

File = Annotated[
    str, typer.Argument(autocompletion=completion.scenario_files, help="Scenario file, or one that ships.")
]
Out = Annotated[Path | None, typer.Option(help="Result folder; default: reports/<name>-<command>.")]
Force = Annotated[bool, typer.Option("--force", help="Start over, even if the folder holds a study.")]
Overrides = Annotated[
    list[str], typer.Option("--set", metavar="PATH=VALUE", help="Change one value; may be repeated.")
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=1, max=4096, help="Maximum number of parallel runs; default: as many as cores and memory allow."
    ),
]
ExecutorName = Annotated[str, typer.Option("--executor", help="Where to run: local or ray.")]
Address = Annotated[str | None, typer.Option(help="Address of a Ray cluster; default: one on this machine.")]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Ignore results cached by other studies.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no summary: only the path.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print study.json instead of a summary.")]

PLAIN_EVERY_S = 10.0
"""Seconds between the lines of a progress that is not on a terminal."""


class Way(NamedTuple):
    """How a study is done, as its options say."""

    out: Path | None
    force: bool
    workers: int | None
    executor: str
    address: str | None
    no_cache: bool
    quiet: bool
    storage: str | None = None


def studied(kind: str, file: str, overrides: list[str], way: Way) -> tuple[dict[str, Any], Path]:
    """Do a study with progress on stderr and print what its runs warned of; return it and its folder."""
    from simserve.cli.run import slug
    from simserve.scenario import load_scenario
    from simserve.study.campaign import Options
    from simserve.study.journal import CACHE_NAME
    from simserve.study.whole import Place, run_study

    it = load_scenario(file, overrides)
    folder = way.out or Path("reports") / f"{slug(it.scenario.name)}-{kind}"
    cache = None if way.no_cache else folder.parent / CACHE_NAME
    place = Place(folder, _command(kind, file, overrides), way.force, way.storage)
    counted: list[Counts] = []
    with _progress(way.quiet) as show:

        def seen(counts: Counts) -> None:
            counted[:] = [counts]
            show(counts)

        try:
            options = Options(way.workers, way.executor, way.address, cache, seen)
            study = run_study(kind, it, place, options)
        except KeyboardInterrupt as stop:
            done = counted[0].done if counted else 0
            raise type(stop)(_resumable(stop, done, way.force)) from stop
    _warn(study)
    return study, folder


def _resumable(stop: KeyboardInterrupt, done: int, force: bool) -> str:
    """Return what is said when a study was stopped."""
    again = "repeat the command without --force" if force else "repeat the command"
    runs = "1 run is" if done == 1 else f"{done:,} runs are"
    return f"{writing.words(stop)}: {runs} done and kept; {again} to resume"


def _warn(study: dict[str, Any]) -> None:
    """Print what the runs of a study warned of."""
    from simserve.report.warnings import study_warnings

    for line in study_warnings(study):
        typer.echo(f"warning: {line}", err=True)


def _command(kind: str, file: str, overrides: list[str]) -> str:
    """Return the command that makes the study again, without machine paths."""
    name = Path(file).name if Path(file).is_absolute() else file
    return shlex.join(["simserve", kind, name, *(part for text in overrides for part in ("--set", text))])


def lines(counts: Counts) -> list[str]:
    """Return the progress, one thing on a line."""
    from simserve.cli.terminal import clock
    from simserve.units import NS_PER_S

    found = f" ({counts.found:,} found)" if counts.found else ""
    eta = "unknown" if counts.eta_s is None else f"about {clock(int(counts.eta_s * NS_PER_S))}"
    first = f"runs: {counts.done:,} done{found}, {_left(counts)} left, {counts.pruned:,} pruned"
    return [first, f"time to go: {eta}", f"best so far: {counts.best or 'none yet'}"]


def _left(counts: Counts) -> str:
    return f"about {counts.left + counts.expected:,}" if counts.expected else f"{counts.left:,}"


@contextmanager
def _progress(quiet: bool) -> Iterator:
    if quiet:
        yield lambda counts: None
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        with Live(console=Console(stderr=True), transient=True, refresh_per_second=4) as live:
            yield lambda counts: live.update(Text("\n".join(lines(counts))))
    else:
        last = [time.monotonic()]

        def say(counts: Counts) -> None:
            if time.monotonic() - last[0] >= PLAIN_EVERY_S:
                last[0] = time.monotonic()
                print("; ".join(lines(counts)), file=sys.stderr, flush=True)

        yield say
