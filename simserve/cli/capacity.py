"""`simserve capacity FILE`: how much load a deployment carries within its SLO."""

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


def capacity(
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
    """Find the highest rate, or number of clients, within the SLO, with its confidence interval.

    The `capacity:` block says what to raise, and over which range; see docs/capacity.md.

    Examples:

    simserve capacity scenarios/cache_capacity.yaml

    simserve capacity mine.yaml --set capacity.replications=10

    Exit codes: 0 done; 2 the input is wrong; 3 done, but the lowest load is not shown to meet the SLO.
    """
    from simserve.metrics.store import canonical_json
    from simserve.report.study.words import capacity_headline, capacity_limit
    from simserve.study.files import run_commands

    way = Way(out, force, workers, executor, address, no_cache, quiet)
    study, folder = studied("capacity", file, overrides, way)
    if as_json:
        print(canonical_json(study), end="")
    elif quiet:
        print(folder / "report.html")
    else:
        print(capacity_headline(study))
        print(capacity_limit(study))
        print(f"Report: {folder / 'report.html'}")
        for line in run_commands(study, folder):
            print(line)
    for note in study["notes"]:
        typer.echo(f"warning: {note}", err=True)
    if study["capacity"]["low"] is None:
        typer.echo(capacity_headline(study), err=True)
        raise typer.Exit(3)
