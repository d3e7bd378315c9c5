"""What was measured so far, in a file that survives being killed at any moment.

One JSON object per line, appended in one write and synced before the next measurement begins. A line cut off
by a kill is the last one; it is cut away when the file is opened again, so that a case is either whole in the
file or not in it. A lock keeps two runs from writing into one folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from simserve.errors import ProfileError

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
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
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
