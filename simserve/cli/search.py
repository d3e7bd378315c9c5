"""`simserve search FILE`: let optuna look for the best points of a large space."""

from __future__ import annotations

from typing import Annotated

import typer

from simserve.cli.study_options import (
    Address,
    AsJson,
    ExecutorName,
    File,
    Force,
    NoCache,
    Out,
    Overrides,
    Quiet,
    Way,
    Workers,
    studied,
)


def search(
    file: File,
    out: Out = None,
    force: Force = False,
    overrides: Overrides = [],  # noqa: B006
    workers: Workers = None,
    executor: ExecutorName = "local",
    address: Address = None,
    storage: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Database for searches by several processes, such as postgresql+psycopg://user@host/name; "
            "default: a file in the result folder.",
        ),
    ] = None,
    no_cache: NoCache = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Search the space of the `search:` block for the points that are best for one or more goals.

    Needs optuna; in your clone: pip install -e '.\\[search]'.

    Examples:

    simserve search scenarios/pareto.yaml

    simserve search mine.yaml --storage postgresql+psycopg://me@db/searches --out reports/worker-1
    """
    from simserve.metrics.store import canonical_json
    from simserve.study.files import run_commands

    way = Way(out, force, workers, executor, address, no_cache, quiet, storage)
    study, folder = studied("search", file, overrides, way)
    if as_json:
        print(canonical_json(study), end="")
    elif quiet:
        print(folder / "report.html")
    else:
        from simserve.cli.texts import print_sweep

        front = [point for point in study["points"] if point["point"] in study["front"]]
        print_sweep({**study, "points": front})
        print(f"{len(front)} of {len(study['points'])} points are on the Pareto front: none beats them")
        print(f"Report: {folder / 'report.html'}")
        for line in run_commands(study, folder):
            print(line)
