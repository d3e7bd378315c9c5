"""The files that a study leaves: results.parquet (a row per run), study.json, scenario.yaml, report.html."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from simserve.metrics.store import canonical_json
from simserve.study.row import Row, columns

_WHOLE = {
    "point",
    "replication",
    "seed",
    "simulated_requests",
    "requests",
    "completed",
    "refused",
    "unfinished",
}


def write_table(path: Path, records: Sequence[dict[str, Any]], settings: Sequence[str]) -> None:
    """Write a row per run: which point, its settings (one column per path), status, reason and numbers.

    `records` hold point, replication, seed, settings, status, reason and row. The same runs give the same
    bytes, in whatever order they were done.
    """
    ordered = sorted(records, key=lambda record: (record["point"], record["replication"] or 0))
    arrays: dict[str, pa.Array] = {
        name: pa.array([record[name] for record in ordered], pa.int64())
        for name in ("point", "replication", "seed")
    }
    for name in settings:
        arrays[name] = _typed([record["settings"].get(name) for record in ordered])
    for name in ("status", "reason"):
        arrays[name] = pa.array([record[name] for record in ordered], pa.string())
    for name in [*columns(), "simulated_requests"]:
        kind = pa.int64() if name in _WHOLE else pa.float64()
        arrays[name] = pa.array([_value(record["row"], name) for record in ordered], kind)
    arrays["stability"] = pa.array([_value(record["row"], "stability") for record in ordered], pa.string())
    _replace(path, lambda to: pq.write_table(pa.table(arrays), to, compression="zstd"))


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write canonical JSON."""
    _replace(path, lambda to: to.write_bytes(canonical_json(value).encode()))


def write_text(path: Path, text: str) -> None:
    """Write text."""
    _replace(path, lambda to: to.write_bytes(text.encode()))


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    partial = path.with_name(path.name + ".partial")
    write(partial)
    os.replace(partial, path)


def _value(row: Row | None, name: str) -> Any:
    return None if row is None else row.get(name)


def _typed(values: list[Any]) -> pa.Array:
    """Return a column of one kind: numbers if all are, else words."""
    kinds = {type(value) for value in values if value is not None}
    if kinds <= {int}:
        return pa.array(values, pa.int64())
    if kinds <= {bool}:
        return pa.array(values, pa.bool_())
    if kinds <= {int, float}:
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    words = [
        value if value is None or isinstance(value, str) else canonical_json(value).strip()
        for value in values
    ]
    return pa.array(words, pa.string())
