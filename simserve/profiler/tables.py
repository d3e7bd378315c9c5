"""From the journal to profile files: one per operation, each replaced as a whole."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from simserve import __version__
from simserve.latency.profile_file import Column, ProfileTable, write_profile
from simserve.profiler.journal import measured

TEXT = ("backend", "backend_version", "kernel", "source", "method")
NOTE = "times are medians; n_samples, std_us, p10_us and p90_us say how they scatter"


def write_tables(
    folder: Path, gpu: str, rows: list[dict[str, Any]], sessions: list[dict[str, Any]]
) -> dict[str, int]:
    """Write `<folder>/<op>.parquet` for every operation with a time; return the rows of each."""
    by_op: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in measured(rows):
        by_op[row["op"]].append(row)
    for op, found in by_op.items():
        path = folder / f"{op}.parquet"
        scratch = folder / f".{op}.parquet.part"
        write_profile(scratch, _table(scratch, op, gpu, found, rows, sessions))
        os.replace(scratch, path)
    return {op: len(found) for op, found in by_op.items()}


def _table(
    path: Path,
    op: str,
    gpu: str,
    found: list[dict[str, Any]],
    rows: list[dict[str, Any]],
    sessions: list[dict[str, Any]],
) -> ProfileTable:
    names = [*found[0]["key"], *found[0]["extra"]]
    columns: dict[str, Column] = {
        name: _column([{**row["key"], **row["extra"]}[name] for row in found]) for name in names
    }
    columns |= {name: _column([row[name] for row in found]) for name in TEXT}
    columns["latency_us"] = np.array([row["latency_us"] for row in found], np.float32)
    columns["n_samples"] = np.array([row["n_samples"] for row in found], np.int64)
    for name in ("std_us", "p10_us", "p90_us"):
        columns[name] = np.array([row[name] for row in found], np.float32)
    columns["n_merged"] = np.ones(len(found), np.uint16)
    columns["quality"] = np.zeros(len(found), np.uint8)
    keys = list(found[0]["key"])
    last = sessions[-1] if sessions else {}
    not_timed = [row for row in rows if row["op"] == op and row["status"] != "ok"]
    about = {
        "format_version": 1, "op": op, "gpu": gpu, "gpu_info": last.get("device", ""), "key_columns": keys,
        "sweep_axis": keys[-1], "value_column": "latency_us", "unit": "us", "driver": last.get("driver"),
        "cuda": last.get("cuda"), "collected": last.get("at"),
        "rotating_inputs": True,
        "l2_policy": "inputs rotate over copies that together exceed twice the last-level cache",
        "note": NOTE, "sessions": sessions, "files": [],
        "not_timed": [{key: row[key] for key in ("key", "backend", "status", "why")} for row in not_timed],
        "sources": {
            "simserve": {
                "name": "simserve profile run", "version": __version__, "licence": "measured by its user"
            }
        },
    }  # fmt: skip
    return ProfileTable(path, columns, about, len(found))


def _column(values: list[Any]) -> Column:
    if isinstance(values[0], str):
        return np.array(values, object)
    if any(isinstance(value, float) for value in values):
        return np.array(values, np.float64)
    return np.array(values, np.int64)
