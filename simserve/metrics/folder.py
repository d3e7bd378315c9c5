"""The folder of a run, or of a run and its variants: replaced whole or not at all.

A folder with foreign files in it is never replaced. A run's own files lie at the top; `variants/<name>/`
holds the same files of each variant.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from simserve.errors import ScenarioError

REQUIRED = (
    "requests.parquet",
    "timeline.parquet",
    "gaps.parquet",
    "summary.json",
    "scenario.resolved.yaml",
    "manifest.json",
)
COMPARISON = "compare.json"
VARIANTS = "variants"
STEPS = "steps.parquet"
BANDS = "bands.parquet"
TIMELINE = "timeline.json.gz"
FIGURES = "figures"
FIGURE_FORMATS = ("svg", "png", "json")
OURS = frozenset({*REQUIRED, "report.html", COMPARISON, VARIANTS, STEPS, BANDS, TIMELINE, FIGURES})


@contextmanager
def staged(folder: Path, force: bool) -> Iterator[Path]:
    """Give an empty folder beside `folder`, which takes its place when the block ends without an error.

    So a reader never sees half a run. Raises `ScenarioError` as `check_target` does.
    """
    check_target(folder, force)
    made = [parent for parent in folder.absolute().parents if not parent.exists()]
    make_folder(folder.parent)
    try:
        staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".partial", dir=folder.parent))
    except OSError as error:
        raise ScenarioError(f"{folder}: cannot be made: {error.strerror}") from error
    try:
        yield staging
        staging.chmod(0o777 & ~_umask())
        _swap(staging, folder)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        for parent in made:
            with suppress(OSError):  # somebody else has put something there
                parent.rmdir()
        raise


def make_folder(folder: Path) -> None:
    """Make a folder and those above it; raises `ScenarioError` with its path if it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ScenarioError(f"{folder}: cannot be made: {error.strerror}") from error
    if not os.access(folder, os.W_OK):
        raise ScenarioError(f"{folder}: cannot be written to")


def check_target(folder: Path, force: bool) -> None:
    """Raise `ScenarioError` if a run may not be written to `folder` (ask before simulating)."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ScenarioError(f"{folder}: is a file, not a folder")
    present = {entry.name for entry in folder.iterdir()}
    if present and not force:
        raise ScenarioError(f"{folder}: exists already; give another name, or --force to replace it")
    foreign = _foreign(folder)
    if foreign:
        more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
        raise ScenarioError(
            f"{folder}: --force replaces only result folders; this one also holds "
            f"{', '.join(foreign[:3])}{more}"
        )


def _foreign(folder: Path) -> list[str]:
    """Return what lies in a result folder and is not of our making."""
    found = {entry.name for entry in folder.iterdir()} - OURS
    variants = folder / VARIANTS
    if variants.exists() and not variants.is_dir():
        found.add(VARIANTS)
    for variant in variants.iterdir() if variants.is_dir() else ():
        inside = {entry.name for entry in variant.iterdir()} - OURS if variant.is_dir() else {""}
        found |= {f"{VARIANTS}/{variant.name}/{name}".rstrip("/") for name in inside}
    figures = folder / FIGURES
    if figures.is_dir():
        ours = {f".{format}" for format in FIGURE_FORMATS}
        found |= {f"{FIGURES}/{one.name}" for one in figures.iterdir() if one.suffix not in ours}
    elif figures.exists():
        found.add(FIGURES)
    return sorted(found)


def _swap(staging: Path, folder: Path) -> None:
    if not folder.exists():
        staging.rename(folder)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".old", dir=folder.parent))
    folder.replace(old / folder.name)
    try:
        staging.rename(folder)
    except BaseException:
        (old / folder.name).rename(folder)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
