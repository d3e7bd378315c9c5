"""Where the files that a scenario names lie, and how outputs name them without machine paths.

A relative name is looked up beside the scenario file, then in the current folder, then in the data that
ships with simserve. Outputs keep names that can be looked up again in the same way.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from simserve.paths import data_dir

SHIPPED = ("traces", "scenarios", "kernels_profile")


def find(name: str, folder: Path) -> Path | None:
    """Return the file or folder called `name` in a scenario that lies in `folder`, or None."""
    if not name:
        return None
    if Path(name).is_absolute():
        return Path(name) if Path(name).exists() else None
    candidates = [folder / name, Path(name), shipped(name)]
    return next((path for path in candidates if path is not None and path.exists()), None)


def shipped(name: str) -> Path | None:
    """Return where the data that ships holds `traces/x`, `scenarios/x` or `kernels_profile/x`."""
    parts = Path(name).parts
    return data_dir(parts[0]).joinpath(*parts[1:]) if len(parts) > 1 and parts[0] in SHIPPED else None


def around(folder: Path) -> Iterator[str]:
    """Yield names that a scenario in `folder` can give to `find`: files beside it, and shipped traces."""
    yield from (path.name for path in folder.iterdir() if path.is_file())
    yield from (f"traces/{path.name}" for path in data_dir("traces").glob("*.gz"))


def portable(name: str, folder: Path) -> str:
    """Return `name` so that `find` finds the same file from the current folder, whatever folder asks.

    Absolute names stay (the user wrote them), shipped data keeps its name, anything else is relative to the
    current folder.
    """
    path = find(name, folder)
    if path is None or Path(name).is_absolute() or path == shipped(name):
        return name
    return Path(os.path.relpath(path)).as_posix()
