"""What a command that writes one file says of a file that is there already."""

from __future__ import annotations

from pathlib import Path

from simserve.errors import UserError


def refuse_to_overwrite(path: Path | None, force: bool) -> None:
    """Raise `UserError` if `path` (None: nothing is written) exists, unless told to replace it."""
    if path is not None and path.exists() and not force:
        raise UserError(f"{path}: exists already; give another name, or --force to replace it")
