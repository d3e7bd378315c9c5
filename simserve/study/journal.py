"""Finished runs, one JSON line each, written so that a kill at any moment loses none and repeats none.

A line is one write, on the disk before the run counts as done. A line without its end (the kill came in the
middle) is cut off when the journal is opened again. One process at a time may hold the folder: the lock goes
with the process, however it ends.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

import simserve
from simserve import __version__
from simserve.errors import ScenarioError
from simserve.metrics.store import make_folder
from simserve.paths import data_dir
from simserve.scenario.load import LoadedScenario, find
from simserve.scenario.spec import Scenario
from simserve.study.executors.base import Outcome

# What makes two runs the same run: scenario, trace, profiles, other files, and the version of the program.
#
# The version is the release and the hash of the program's own source, so that a changed program never takes
# what an older one left behind.


@cache
def code_version() -> str:
    """Return the release and a hash of the source."""
    digest = hashlib.sha256()
    root = Path(simserve.__file__).parent
    for path in sorted(root.rglob("*.py")):
        if "_data" not in path.parts:
            digest.update(path.relative_to(root).as_posix().encode())
            digest.update(path.read_bytes())
    return f"{__version__}+{digest.hexdigest()[:16]}"


def run_key(it: LoadedScenario) -> str:
    """Return the hash of everything that the result of a scenario depends on."""
    scenario = it.scenario
    plain = scenario.as_mapping()
    plain.pop("name")
    text = json.dumps(plain, sort_keys=True, default=str)
    parts = [code_version(), text, *_inputs(it)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _inputs(it: LoadedScenario) -> list[str]:
    """Return hashes of the files that the scenario names, and of its GPUs' profiles."""
    scenario = it.scenario
    found = [file_digest(str(path)) for path in (find(name, it.folder) for name in _files(scenario)) if path]
    folders = [find(name, it.folder) for name in scenario.profiles]
    roots = [folder for folder in folders if folder] + [data_dir("kernels_profile")]
    for gpu in sorted({pool.gpu for pool in scenario.pools}):
        found += [folder_digest(str(root / gpu)) for root in roots]
    return found


def _files(scenario: Scenario) -> list[str]:
    names: list[Any] = [scenario.workload.trace, scenario.model, scenario.engine.overhead]
    names += [pool.engine.overhead for pool in scenario.pools]
    return [name for name in names if name]


@cache
def file_digest(path: str) -> str:
    """Return the hash of a file (of all files, for a folder), read once per process."""
    if Path(path).is_dir():
        return folder_digest(path)
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


@cache
def folder_digest(path: str) -> str:
    """Return the hash of the files of a folder, read once per process; empty if there is none."""
    files = sorted(file for file in Path(path).glob("*") if file.is_file())
    parts = [f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}" for file in files]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest() if parts else ""


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
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o666)
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


# Runs that any study has done before, by the hash of what they depend on; beside the studies' folders.

CACHE_NAME = ".simserve-runs"


class PointCache:
    """One small file per run; a file is whole or not there."""

    def __init__(self, folder: Path | None) -> None:
        """With None, nothing is kept."""
        self._folder = folder

    def get(self, key: str) -> Outcome | None:
        """Return what a run gave before; None if it is not known."""
        if self._folder is None:
            return None
        try:
            value = json.loads(self._path(self._folder, key).read_bytes())
        except (OSError, ValueError):
            return None
        return Outcome(key, value["row"], value["reason"])

    def put(self, outcome: Outcome) -> None:
        """Keep what a run gave."""
        if self._folder is None:
            return
        path = self._path(self._folder, outcome.key)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"row": outcome.row, "reason": outcome.reason}, sort_keys=True, ensure_ascii=False)
        handle, name = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode())
        os.replace(name, path)

    def _path(self, folder: Path, key: str) -> Path:
        return folder / key[:2] / f"{key}.json"
