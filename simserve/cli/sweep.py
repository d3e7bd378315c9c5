"""`simserve sweep FILE`: run a scenario at many points, and show what the settings do."""

from __future__ import annotations

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


def sweep(
    file: File,
    out: Out = None,
    force: Force = False,
    overrides: Overrides = [],  # noqa: B006
    workers: Workers = None,
    executor: ExecutorName = "local",
    address: Address = None,
    no_cache: NoCache = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run a scenario at every point of its `sweep:` block; write a dataset and a page.

    Repeat the command to resume an interrupted sweep.

    Examples:

    simserve sweep scenarios/chunk_sweep.yaml

    simserve sweep mine.yaml --workers 2 --out reports/tp
    """
    from simserve.metrics.store import canonical_json

    way = Way(out, force, workers, executor, address, no_cache, quiet)
    study, folder = studied("sweep", file, overrides, way)
    if as_json:
        print(canonical_json(study), end="")
    elif quiet:
        print(folder / "report.html")
    else:
        from simserve.cli.texts import print_sweep

        print_sweep(study)
        typer.echo(f"Report: {folder / 'report.html'}")
