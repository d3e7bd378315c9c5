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
    Workers,
    command,
    opened,
    warn,
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
    from simserve.report.study.pages import write_sweep_page
    from simserve.scenario import load_scenario
    from simserve.study.files import write_json, write_table
    from simserve.study.points import require_sweep, run_sweep

    it = load_scenario(file, overrides)
    spec = require_sweep(it)
    with opened("sweep", it, out, force, workers, executor, address, no_cache, quiet) as (work, folder):
        study, records, paths = run_sweep(work, spec)
        study["command"] = command("sweep", file, overrides)
        write_table(folder / "results.parquet", records, paths)
        write_json(folder / "study.json", study)
        write_sweep_page(study, folder / "report.html")
    warn(study)
    if as_json:
        print(canonical_json(study), end="")
    elif quiet:
        print(folder / "report.html")
    else:
        from simserve.cli.texts import print_sweep

        print_sweep(study)
        typer.echo(f"Report: {folder / 'report.html'}")
