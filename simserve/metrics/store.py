"""The files in which a run is kept: the same bytes for the same run.

requests.parquet timeline.parquet gaps.parquet summary.json scenario.resolved.yaml manifest.json; on request
steps.parquet, with every engine step; with several seeds bands.parquet.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from simserve import arrow
from simserve.core import Result
from simserve.core.steps import Steps
from simserve.errors import ScenarioError
from simserve.metrics.folder import BANDS, REQUIRED, STEPS, staged
from simserve.metrics.slo import Slo
from simserve.metrics.summary import SCHEMA, Summary
from simserve.metrics.tables import gap_table, request_table, step_table, timeline_table


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
