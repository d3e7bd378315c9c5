"""`simserve profile run`: measure kernels on this machine; needs torch, which nothing else here does."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column

if TYPE_CHECKING:
    from simserve.profiler.run import Outcome


# Progress of a profile run on stderr: cases done, time left, what is being measured.


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


def run(
    gpu_name: Annotated[
        str, typer.Option("--gpu-name", help="Name of the profile, as a scenario will say; cpu: this CPU.")
    ],
    budget: Annotated[str, typer.Option(help="Time limit, such as 90s, 20m, 1h.")] = "20m",
    models: Annotated[
        list[str], typer.Option("--models", help="Model whose shapes to measure; may be repeated.")
    ] = ["llama-3.1-8b"],  # noqa: B006
    ops: Annotated[
        list[str], typer.Option("--ops", help="Operation to measure; may be repeated (default: all).")
    ] = [],  # noqa: B006
    tp: Annotated[list[str], typer.Option("--tp", help="TP degree; may be repeated.")] = ["1"],  # noqa: B006
    dtype: Annotated[str, typer.Option(help="Type of activations (default: bf16 on a GPU, fp32).")] = "",
    weights_dtype: Annotated[
        list[str], typer.Option("--weights-dtype", help="Type of weights; may be repeated (default: dtype).")
    ] = [],  # noqa: B006
    kv_dtype: Annotated[
        list[str], typer.Option("--kv-dtype", help="Type of the KV cache; may be repeated (default: dtype).")
    ] = [],  # noqa: B006
    backends: Annotated[
        list[str], typer.Option("--backends", help="Only these libraries; may be repeated (default: all).")
    ] = [],  # noqa: B006
    out: Annotated[Path, typer.Option(help="Folder to write <gpu>/<op>.parquet into.")] = Path("profiles"),
    resume: Annotated[bool, typer.Option("--resume", help="Resume an earlier run.")] = False,
    threads: Annotated[int, typer.Option(help="CPU threads (default: torch's own choice).")] = 0,
    device: Annotated[str, typer.Option(help="cuda or cpu (default: cpu if --gpu-name is cpu).")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan, measure nothing.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the folder on stdout.")] = False,
) -> None:
    """Measure kernels on this machine within a time budget; a scenario reads them by `profiles: [FOLDER]`.

    Values that may be repeated may also be given with commas.

    Examples:

    simserve profile run --gpu-name h200_sxm --budget 20m --models llama-3.1-70b,deepseek-v3 --tp 1,8

    simserve profile run --gpu-name cpu --budget 1m --ops gemm --models tiny

    torchrun --nproc-per-node 8 -m simserve profile run --gpu-name h200_sxm --ops collective,ep_a2a

    Exit codes: 0 done (or the budget is used up); 2 the input is wrong, or torch or the GPU is missing; 3
    done, but some kernels were wrong, failed or did not fit in memory.
    """
    started = time.monotonic()
    from simserve.profiler.job import Job, Types
    from simserve.profiler.ranks import Meeting, joined, launch

    most_s = _seconds(budget)
    kind = device or ("cpu" if gpu_name == "cpu" else "cuda")
    place = launch()
    if place and place.rank:
        if not dry_run:
            with joined(place, kind):
                Meeting(place, kind).serve()
        return
    job = Job.make(
        gpu_name,
        kind,
        split_list(models),
        split_list(ops),
        [_degree(text) for text in split_list(tp)],
        Types(dtype, tuple(split_list(weights_dtype)), tuple(split_list(kv_dtype))),
        threads=threads,
        backends=split_list(backends),
    )
    if dry_run:
        for case in job.cases:
            print(job.describe(case))
        return
    for note in () if quiet else job.notes:
        print(note, file=sys.stderr)
    try:
        with joined(place, kind) if place else nullcontext(), shown(quiet) as progress:
            outcome = job.run(out, most_s - (time.monotonic() - started), resume, progress)
    except KeyboardInterrupt:
        print(f"{out / gpu_name} holds what was measured; go on with --resume", file=sys.stderr)
        raise
    _report(outcome, quiet, launched=place is not None)


def _report(outcome: Outcome, quiet: bool, launched: bool) -> None:
    if not quiet:
        tables = ", ".join(f"{op} {rows}" for op, rows in (outcome.rows or {}).items()) or "none"
        print(
            f"{outcome.timed} timed, {outcome.not_timed} not timed, {outcome.resumed} from earlier runs, "
            f"{outcome.left} left of {outcome.planned}; rows: {tables}",
            file=sys.stderr,
        )
        for backend, why in outcome.given_up.items():
            print(f"{backend} failed again and again and was given up: {why}", file=sys.stderr)
        if outcome.left:
            print("the budget is used up; go on with --resume", file=sys.stderr)
    print(outcome.folder)
    if outcome.not_timed:
        print(
            f"some kernels were not timed: see status and why in {outcome.folder}/journal.jsonl",
            file=sys.stderr,
        )
        # torchrun takes anything but 0 for a crash.
        raise typer.Exit(0 if launched else 3)


def split_list(values: list[str]) -> list[str]:
    """Return the values of an option that may be repeated, or given with commas."""
    return [part.strip() for value in values for part in value.split(",") if part.strip()]


def _degree(text: str) -> int:
    from simserve.errors import ProfileError

    if not text.isdigit() or int(text) < 1:
        raise ProfileError(f"--tp {text!r}: allowed: whole numbers from 1")
    return int(text)


def _seconds(budget: str) -> float:
    from simserve.errors import ProfileError

    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|h)?", budget.strip())
    if not match:
        raise ProfileError(f"--budget {budget!r}: allowed: a number and s, m or h, such as 90s or 20m")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600, None: 1}[match[2]]
