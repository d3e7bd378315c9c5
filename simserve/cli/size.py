"""`simserve size FILE`: the cheapest deployment within the SLO."""

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


def size(
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
    """Find the cheapest deployment that meets the SLO with confidence, and say what limits it.

    The `size:` block holds the GPUs with their prices and the choices; see docs/sizing.md.

    Examples:

    simserve size scenarios/sizing.yaml

    simserve size mine.yaml --set slo.ttft_ms=500

    Exit codes: 0 done; 2 the input is wrong; 3 done, but no deployment meets the SLO with confidence.
    """
    from simserve.metrics.store import canonical_json
    from simserve.report.study.words import size_headline
    from simserve.study.files import run_commands

    way = Way(out, force, workers, executor, address, no_cache, quiet)
    study, folder = studied("size", file, overrides, way)
    if as_json:
        print(canonical_json(study), end="")
    elif quiet:
        print(folder / "report.html")
    else:
        from simserve.cli.texts import print_size

        print_size(study)
        print(f"Report: {folder / 'report.html'}")
        for line in run_commands(study, folder):
            print(line)
    if not study["feasible"]:
        typer.echo(size_headline(study), err=True)
        raise typer.Exit(3)
