"""`simserve compare A B`: stored runs beside each other, or beside what a load generator measured."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simserve.cli.writing import refuse_to_overwrite
from simserve.errors import ScenarioError

if TYPE_CHECKING:
    from simserve.metrics.comparison import StoredComparison
    from simserve.metrics.store import StoredRun


def compare(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN",
            help="Result folders, and results of vllm bench serve, SGLang's bench_serving, AIPerf, "
            "GenAI-Perf, guidellm, inference-perf or llm-d. FILE#2 is the second run in a file.",
        ),
    ],
    format: Annotated[
        str, typer.Option("--format", "-f", help="Format of the measured files; auto looks at their content.")
    ] = "auto",
    html: Annotated[Path | None, typer.Option(help="Also write a page with pictures to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a page that exists.")] = False,
) -> None:
    """Compare runs: every measure with its difference from the baseline, and the same requests one by one.

    The baseline is what was measured, if anything was, otherwise the first run. A run with variants is
    compared on its own; its variants/<name> folders are runs too.

    Examples:

    simserve compare reports/before reports/after

    simserve compare reports/chat-on-one-h100 bench.json --html chat.html
    """
    from simserve.cli.texts import print_comparison
    from simserve.metrics.store import canonical_json

    refuse_to_overwrite(html, force)
    found = _compared(what, format)
    if html is not None:
        from simserve.report.write import write_comparison_page

        command = shlex.join(["simserve", "compare", *map(_portable, what)])
        write_comparison_page(found, html, command)
    if as_json:
        measured = {name: run.measured for name, run in found.runs.items() if run.measured}
        print(canonical_json({**found.table, "measured": measured}), end="")
    else:
        print_comparison(found)
        if html is not None:
            print(f"Page: {html}")


def _compared(what: list[str], format: str) -> StoredComparison:
    from simserve.metrics.comparison import StoredComparison, compare, read_comparison
    from simserve.metrics.measures import AGAINST_MEASURED, MEASURES

    if len(what) == 1:
        stored = read_comparison(Path(what[0])) if Path(what[0]).is_dir() else None
        if stored is None:
            raise ScenarioError(
                f"{what[0]}: is a single run; name a second one, or the folder of a run with variants"
            )
        return stored
    runs: dict[str, StoredRun] = {}
    for name in what:
        runs[_label(name, what)] = _read(name, format)
    if len(runs) < len(what):
        raise ScenarioError(f"{' '.join(what)}: a run is named twice")
    order = sorted(runs, key=lambda name: not runs[name].measured)  # what was measured comes first
    runs = {name: runs[name] for name in order}
    measured = any(run.measured for run in runs.values())
    return StoredComparison(runs, compare(runs, AGAINST_MEASURED if measured else MEASURES))


def _read(name: str, format: str) -> StoredRun:
    from simserve.metrics.store import read_results

    if (Path(name) / "manifest.json").is_file():
        return read_results(Path(name))
    from simserve.validation.load_test import run_of
    from simserve.validation.loadtests.read import file_of, read_load_test

    if not file_of(name)[0].exists():
        raise ScenarioError(f"{name}: no such result folder or file of measurements")
    return run_of(read_load_test(name, format))


def _label(name: str, what: list[str]) -> str:
    """Return the last part of a path, or the whole of it where two paths end alike."""
    last = Path(name).name
    return name if sum(Path(one).name == last for one in what) > 1 else last


def _portable(name: str) -> str:
    return Path(name).name if Path(name).is_absolute() else name
