"""What was measured so far, in a file that survives being killed at any moment.

One JSON object per line, appended in one write and synced before the next measurement begins. A line cut off
by a kill is the last one; it is cut away when the file is opened again, so that a case is either whole in the
file or not in it. A lock keeps two runs from writing into one folder.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from simserve import __version__
from simserve.errors import ProfileError
from simserve.latency.tables.profiles import Column, ProfileTable, write_profile

NAME = "journal.jsonl"


def read_journal(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the whole lines of a journal, and the bytes that they take.

    Raises `ProfileError` naming the line if one before the end is not JSON.
    """
    lines: list[dict[str, Any]] = []
    size = 0
    content = path.read_bytes() if path.is_file() else b""
    for number, line in enumerate(content.splitlines(keepends=True), 1):
        if not line.endswith(b"\n"):
            break
        try:
            lines.append(json.loads(line))
        except ValueError as error:
            if size + len(line) == len(content):
                break
            raise ProfileError(f"{path} line {number}: not JSON ({error}); was it edited?") from error
        size += len(line)
    return lines, size


class Journal:
    """An open journal; use as a context."""

    def __init__(self, path: Path) -> None:
        """Open or create the file, lock it, and cut a torn last line; raises `ProfileError` if locked."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._lock = FileLock(path.with_suffix(".lock"), timeout=0)
        try:
            self._lock.acquire()
        except Timeout as error:
            raise ProfileError(f"{path}: another run is writing there") from error
        try:
            _, size = read_journal(path)
            self._file = os.open(
                path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o644
            )
        except BaseException:
            self._lock.release()
            raise
        os.ftruncate(self._file, size)
        self.read_again()

    def read_again(self) -> None:
        """Take what is on the disk, which an interrupt may have put one row ahead of what is known here."""
        lines, _ = read_journal(self.path)
        self.rows = [line for line in lines if "case" in line]
        self.sessions = [line["session"] for line in lines if "session" in line]
        self.done = {line["case"] for line in self.rows}

    def __enter__(self) -> Journal:
        """Return the journal."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file and unlock it."""
        os.close(self._file)
        self._lock.release()

    def begin(self, session: dict[str, Any]) -> None:
        """Note where, when and with what the following rows are measured."""
        self._append({"session": session})
        self.sessions.append(session)

    def add(self, row: dict[str, Any]) -> None:
        """Append the outcome of a case; it is on the disk when this returns."""
        self._append(row)
        self.rows.append(row)
        self.done.add(row["case"])

    def _append(self, line: dict[str, Any]) -> None:
        # Columns keep their order: the last of a key is the axis that a table is swept along.
        text = json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n"
        data = text.encode()
        if os.write(self._file, data) != len(data):
            raise ProfileError(f"{self.path}: could not be written whole (is the disk full?)")
        os.fsync(self._file)


def measured(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the rows that hold a time (not those that ran out of memory, were wrong or unsupported)."""
    return (row for row in rows if row["status"] == "ok")


# From the journal to profile files: one per operation, each replaced as a whole.

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
