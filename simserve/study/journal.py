"""Finished runs, one JSON line each, written so that a kill at any moment loses none and repeats none.

A line is one write, on the disk before the run counts as done. A line without its end (the kill came in the
middle) is cut off when the journal is opened again. One process at a time may hold the folder: the lock goes
with the process, however it ends.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from simserve.errors import ScenarioError
from simserve.metrics.folder import make_folder
from simserve.study.bench import Outcome

NAME = "journal.jsonl"
LOCK = "journal.lock"
HOLDER = "journal.holder"
"""The number of the process that holds the lock, in its own file: Windows lets nobody read a locked one."""


class Journal:
    """The journal of one folder, open for writing."""

    def __init__(self, path: Path, study: str) -> None:
        """Open or create the journal; `study` tells which study it belongs to.

        Raises `ScenarioError` if it belongs to another one.
        """
        self.outcomes: dict[str, Outcome] = {}
        whole = self._read(path, study)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.ftruncate(self._file, whole)
        if not whole:
            self._append({"study": study})

    def add(self, outcome: Outcome) -> None:
        """Keep an outcome for ever."""
        if outcome.key not in self.outcomes:
            self._append({"key": outcome.key, "row": outcome.row, "reason": outcome.reason})
            self.outcomes[outcome.key] = outcome

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _append(self, value: dict[str, Any]) -> None:
        line = json.dumps(value, sort_keys=True, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        data = line.encode() + b"\n"
        if os.write(self._file, data) != len(data):
            raise OSError("the disk is full: the journal's last line is not whole")
        os.fsync(self._file)

    def _read(self, path: Path, study: str) -> int:
        """Read what is there and return the length of its whole lines."""
        data = path.read_bytes() if path.exists() else b""
        whole = data.rfind(b"\n") + 1
        for number, line in enumerate(data[:whole].splitlines()):
            try:
                value = json.loads(line)
            except ValueError as error:
                raise ScenarioError(f"{path}:{number + 1}: not a line of a journal: {error}") from error
            if number == 0:
                if value.get("study") != study:
                    raise ScenarioError(
                        f"{path.parent}: holds another study (the scenario, its files or simserve have "
                        "changed since); give another folder, or --force to start over"
                    )
                continue
            self.outcomes[value["key"]] = Outcome(value["key"], value["row"], value["reason"])
        return whole


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a study's folder while the block runs; raises `ScenarioError` if another process does."""
    make_folder(folder)
    holder = folder / HOLDER
    try:
        with FileLock(folder / LOCK, timeout=0):
            holder.write_text(f"{os.getpid()}\n", encoding="utf-8")
            try:
                yield
            finally:
                holder.unlink(missing_ok=True)
    except Timeout as error:
        number = holder.read_text(encoding="utf-8").strip() if holder.exists() else ""
        who = f"process {number}" if number else "another process"
        raise ScenarioError(f"{folder}: {who} is working on this study; wait for it, or stop it") from error
