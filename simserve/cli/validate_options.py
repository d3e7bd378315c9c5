"""Options that `simserve validate measured` and `published` have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Overhead = Annotated[
    str | None, typer.Option(help="Engine overhead: a name, or a file that `simserve calibrate` wrote.")
]
Profiles = Annotated[
    list[Path], typer.Option(help="Folder of kernel tables, searched before what ships; repeatable.")
]
Page = Annotated[
    Path | None, typer.Option(help="Page whose marked tables to replace, such as docs/fidelity.md.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress on stderr.")]
