"""The folder in which a run is kept: written whole or not at all, and the same bytes for the same run.

requests.parquet timeline.parquet gaps.parquet summary.json scenario.resolved.yaml manifest.json
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from simserve.core import Result
from simserve.errors import ScenarioError
from simserve.metrics.slo import Slo
from simserve.metrics.summary import Summary
from simserve.metrics.tables import gap_table, request_table, timeline_table

REQUIRED = (
    "requests.parquet",
    "timeline.parquet",
    "gaps.parquet",
    "summary.json",
    "scenario.resolved.yaml",
    "manifest.json",
)
OURS = frozenset({*REQUIRED, "report.html"})


@dataclass(frozen=True)
class StoredRun:
    """A run as it lies in its folder. Tables are read when first used."""

    folder: Path
    summary: dict[str, Any]
    manifest: dict[str, Any]
    scenario_yaml: str

    @cached_property
    def requests(self) -> pa.Table:
        """One row per request."""
        return pq.read_table(self.folder / "requests.parquet")

    @cached_property
    def timeline(self) -> pa.Table:
        """State of the replicas over time."""
        return pq.read_table(self.folder / "timeline.parquet")

    @cached_property
    def gaps(self) -> pa.Table:
        """Histogram of inter-token latencies."""
        return pq.read_table(self.folder / "gaps.parquet")


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

    Everything is written beside `folder` and renamed, so that a reader never sees half a run. Raises
    `ScenarioError` if the folder holds something, unless `force`, and even then if it holds foreign files.
    """
    folder = Path(folder)
    check_target(folder, force)
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".partial", dir=folder.parent))
    try:
        _write_all(staging, result, summary, scenario_yaml, manifest, slo)
        staging.chmod(0o777 & ~_umask())
        _swap(staging, folder)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    return folder


def read_results(folder: Path) -> StoredRun:
    """Return the run kept in `folder`; raises `ScenarioError` naming what is missing or broken."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ScenarioError(f"{folder}: no such result folder")
    missing = [name for name in REQUIRED if not (folder / name).is_file()]
    if missing:
        raise ScenarioError(f"{folder}: not a result folder of simserve, it lacks {', '.join(missing)}")
    scenario = (folder / "scenario.resolved.yaml").read_text(encoding="utf-8")
    return StoredRun(folder, _load(folder / "summary.json"), _load(folder / "manifest.json"), scenario)


def check_target(folder: Path, force: bool) -> None:
    """Raise `ScenarioError` if a run may not be written to `folder` (ask before simulating)."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ScenarioError(f"{folder}: is a file, not a folder")
    present = {entry.name for entry in folder.iterdir()}
    if present and not force:
        raise ScenarioError(f"{folder}: exists already; give another name, or --force to replace it")
    foreign = sorted(present - OURS)
    if foreign:
        more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
        raise ScenarioError(
            f"{folder}: --force replaces only result folders; this one also holds "
            f"{', '.join(foreign[:3])}{more}"
        )


def canonical_json(value: Any) -> str:
    """Return sorted, indented JSON with a final newline; NaN and infinity are refused."""
    return json.dumps(value, sort_keys=True, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def _write_all(
    folder: Path,
    result: Result,
    summary: Summary,
    scenario_yaml: str,
    manifest: Mapping[str, Any],
    slo: Slo | None,
) -> None:
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


def _write_table(table: pa.Table, path: Path) -> None:
    pq.write_table(table, path, compression="zstd")


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


def _load(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ScenarioError(f"{path}: not valid JSON: {error}") from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
