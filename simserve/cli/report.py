"""`simserve report DIR`: a stored run or study again, as a page; a run as pictures or for another tool."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simserve.cli.writing import refuse_to_overwrite
from simserve.errors import ScenarioError, nearest


def report(
    folder: Path = typer.Argument(help="Folder that `simserve run` or a study wrote.", metavar="DIR"),
    figures: Annotated[
        str | None,
        typer.Option(
            metavar="svg|png|json",
            help="Also write every chart to DIR/figures; json is for plotly; png needs a Chrome and kaleido: "
            "pip install -e '.\\[figures]' in your clone.",
        ),
    ] = None,
    export: Annotated[
        tuple[str, Path] | None,
        typer.Option(
            metavar="FORMAT FILE",
            help="Also write the results for another tool: llm-d, benchmark report 0.2.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an exported file that exists.")] = False,
) -> None:
    """Rebuild report.html of a finished run or study from its stored results.

    Examples:

    simserve report reports/demo

    simserve report reports/demo --figures svg

    simserve report reports/demo --export llm-d demo.yaml

    simserve report reports/demo-sweep
    """
    from simserve.report import write_report
    from simserve.report.export.perfetto import EXPORTS
    from simserve.report.figures import write_figures
    from simserve.report.study.pages import STUDY, write_study_page

    if (folder / STUDY).is_file():
        if figures is not None or export is not None:
            raise ScenarioError(f"{folder}: is a study; --figures and --export are for single runs")
        print(write_study_page(folder))
        return
    if export is not None:
        _check_export(*export, list(EXPORTS), force)
    print(write_report(folder))
    if export is not None:
        print(EXPORTS[export[0]](folder, export[1]))
    if figures is not None:
        for path in write_figures(folder, figures):
            print(path)


def _check_export(name: str, file: Path, known: list[str], force: bool) -> None:
    if name not in known:
        raise ScenarioError(f"--export {name}: allowed: {', '.join(known)}{nearest(name, known)}")
    refuse_to_overwrite(file, force)
    if not file.absolute().parent.is_dir():
        raise ScenarioError(f"{file}: there is no folder {file.parent}")
