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
    from simserve.report import write_report

    print(write_report(folder))
