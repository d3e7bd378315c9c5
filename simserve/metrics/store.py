"""The files in which a run is kept: the same bytes for the same run.

requests.parquet timeline.parquet gaps.parquet summary.json scenario.resolved.yaml manifest.json; on request
steps.parquet, with every engine step; with several seeds bands.parquet.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from simserve import arrow
from simserve.core import Result
from simserve.core.totals import Steps
from simserve.errors import ScenarioError
from simserve.metrics.columns import Slo
from simserve.metrics.summary import SCHEMA, Summary
from simserve.metrics.tables import gap_table, request_table, step_table, timeline_table

# The folder of a run, or of a run and its variants: replaced whole or not at all.
#
# A folder with foreign files in it is never replaced. A run's own files lie at the top; `variants/<name>/`
# holds the same files of each variant.

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


@dataclass(frozen=True)
class StoredRun:
    """A run as it lies in its folder. Tables are read when first used."""

    folder: Path
    summary: dict[str, Any]
    manifest: dict[str, Any]
    scenario_yaml: str
    held: Mapping[str, pa.Table] | None = None
    """Tables of a run that was measured, and so has no folder."""

    def __repr__(self) -> str:
        name = self.manifest.get("scenario_name") or (self.measured or {}).get("format") or ""
        where = f" in {self.folder}" if self.held is None else ""
        return f"<StoredRun {name!r}{where}>"

    @cached_property
    def requests(self) -> pa.Table:
        """One row per request."""
        return self._table("requests")

    @cached_property
    def timeline(self) -> pa.Table:
        """State of the replicas over time."""
        return self._table("timeline")

    @cached_property
    def gaps(self) -> pa.Table:
        """Histogram of inter-token latencies."""
        return self._table("gaps")

    @property
    def has_steps(self) -> bool:
        """True if the run was recorded with its steps."""
        return (self.folder / STEPS).is_file()

    @cached_property
    def steps(self) -> pa.Table:
        """One row per engine step, if they were recorded."""
        return self._table("steps")

    @cached_property
    def bands(self) -> pa.Table | None:
        """Curves over several seeds; None for a single run, or where no seed changes anything."""
        return self._table("bands") if self.held is None and (self.folder / BANDS).is_file() else None

    @property
    def measured(self) -> dict[str, Any] | None:
        """Where a measured run comes from; None for a simulated one."""
        return self.manifest.get("measured")

    def _table(self, name: str) -> pa.Table:
        return arrow.read_table(self.folder / f"{name}.parquet") if self.held is None else self.held[name]


def write_results(
    folder: Path,
    result: Result,
    summary: Summary,
    scenario_yaml: str,
    manifest: Mapping[str, Any],
    *,
    slo: Slo | None = None,
    force: bool = False,
) -> Path:
    """Write a run into `folder` and return it; `slo` fills the requests' `good` column.

    Raises `ScenarioError` if the folder holds something, unless `force`, and even then if it holds foreign
    files.
    """
    with staged(Path(folder), force) as staging:
        write_run(staging, result, summary, scenario_yaml, manifest, slo)
    return Path(folder)


def write_run(
    folder: Path,
    result: Result,
    summary: Summary,
    scenario_yaml: str,
    manifest: Mapping[str, Any],
    slo: Slo | None = None,
    steps: Steps | None = None,
    bands: pa.Table | None = None,
) -> None:
    """Write the files of a run into an existing `folder`: see `write_results`."""
    if bands is not None:
        _write_table(bands, folder / BANDS)
    if steps is not None:
        _write_table(step_table(steps), folder / STEPS)
    _write_table(request_table(result, slo), folder / "requests.parquet")
    _write_table(timeline_table(result.replicas), folder / "timeline.parquet")
    _write_table(gap_table(result.gaps, result.steady_gaps), folder / "gaps.parquet")
    texts = {
        "summary.json": canonical_json(summary.to_dict()),
        "scenario.resolved.yaml": scenario_yaml,
        "manifest.json": canonical_json(dict(manifest)),
    }
    for name, text in texts.items():
        (folder / name).write_bytes(text.encode())


def read_results(folder: Path) -> StoredRun:
    """Return the run kept in `folder`.

    Raises `ScenarioError` naming what is missing, broken or of another version of simserve.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ScenarioError(f"{folder}: no such result folder")
    missing = [name for name in REQUIRED if not (folder / name).is_file()]
    if missing:
        raise ScenarioError(f"{folder}: not a result folder of simserve, it lacks {', '.join(missing)}")
    scenario = (folder / "scenario.resolved.yaml").read_text(encoding="utf-8")
    summary = _load(folder / "summary.json")
    if summary.get("schema") != SCHEMA:
        raise ScenarioError(
            f"{folder / 'summary.json'}: schema {summary.get('schema')} of another version of simserve, "
            f"this one reads {SCHEMA}; run it again: simserve run {folder / 'scenario.resolved.yaml'}"
        )
    return StoredRun(folder, summary, _load(folder / "manifest.json"), scenario)


def canonical_json(value: Any) -> str:
    """Return sorted, indented JSON with a final newline; NaN and infinity are refused."""
    return json.dumps(value, sort_keys=True, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def _write_table(table: pa.Table, path: Path) -> None:
    pq.write_table(table, path, compression="zstd")


def _load(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ScenarioError(f"{path}: not valid JSON: {error}") from error
