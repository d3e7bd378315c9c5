"""`simserve report DIR`: write the HTML page of a stored run again."""

from __future__ import annotations

from pathlib import Path

import typer


def report(
    folder: Path = typer.Argument(help="Folder that `simserve run` wrote.", metavar="DIR"),
) -> None:
    """Write report.html of a finished run again, from its stored results alone.

    Example: simserve report reports/demo
    """
    from simserve.errors import ScenarioError
    from simserve.report import write_report

    if not (folder / "manifest.json").is_file():
        raise ScenarioError(f"{folder}: is not the folder of a finished run (it has no manifest.json)")
    print(write_report(folder))
