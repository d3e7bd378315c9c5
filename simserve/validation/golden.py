"""What a replay of an engine's own scheduling log says: how many steps agree, and where they part."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from simserve.errors import InvariantError, UserError, nearest

# The clients of a golden log: who arrives at which step, and who follows whose answer.


class LogClients:
    """Requests that are due, by the log's step counter: at a step, or `gap` steps after another's end."""

    def __init__(self, requests: list[dict[str, Any]]) -> None:
        """`requests` are the log's request lines, in order of their ids."""
        self._rows = requests
        self._due: dict[int, list[int]] = {}
        self._followers: dict[int, list[int]] = {}
        for row in requests:
            if "at" in row:
                self._due.setdefault(row["at"], []).append(row["id"])
            else:
                self._followers.setdefault(row["after"], []).append(row["id"])

    def are_due(self, t: int) -> bool:
        """Return whether somebody arrives at step `t`."""
        return t in self._due

    def arrivals(self, t: int) -> list[int]:
        """Return the ids of those who arrive at step `t`, in order, once."""
        return sorted(self._due.pop(t, []))

    def see_ends(self, ended: Iterable[int], t: int) -> None:
        """Note whose answers were complete at step `t`; their followers come some steps later."""
        for index in ended:
            for follower in self._followers.get(index, ()):
                self._due.setdefault(t + self._rows[follower]["gap"], []).append(follower)


# Reads the scheduling logs of real engines; whatever is wrong is named by file and line.

Row = dict[str, Any]

KINDS = ("config", "request", "step")
SUFFIXES = (".jsonl.gz", ".jsonl")

_FIELDS: dict[str, dict[str, type]] = {
    "config": {"engine": str, "version": str, "config": dict, "requests": int, "steps": int},
    "request": {"id": int, "prompt": list, "out": int, "prio": int},
    "step": {"t": int},
}
"""Fields that every line of a kind has."""


class LogRefused(UserError):
    """A log is sound, but tells of something that a replay cannot follow: equal steps would mean nothing."""

    def __init__(self, place: str, line: str, keys: dict[str, str]) -> None:
        """`place`: the file; `line`: the kind of line; `keys`: each key that is not followed, and why."""
        self.keys = keys
        self.reason = f"{line} has {', '.join(f'{name} ({why})' for name, why in keys.items())}"
        super().__init__(self.reason, place=place)
        self.args = (place, line, keys)


@dataclass(frozen=True)
class Vocabulary:
    """What the replay of one engine understands of a log, by the keys of its lines."""

    settings: Collection[str]
    """Keys of the config line's settings."""
    steps: Collection[str]
    """Keys of a step."""
    not_replayed: Mapping[str, str]
    """Keys of settings, requests or steps that belong to a feature which is not replayed: its name."""

    def check(self, path: str, head: Row, requests: list[Row], steps: list[Row]) -> None:
        """Raise LogRefused if the settings, a request or a step have a key that is not replayed."""
        settings = {name for name, value in head["config"].items() if self._asks(name, value)}
        self._refuse(f"{path}, line 1", "config", settings, self.settings)
        self._refuse(path, "a request", set[str]().union(*requests), _REQUEST_KEYS)
        self._refuse(path, "a step", set[str]().union(*steps), self.steps)

    def _asks(self, name: str, value: Any) -> bool:
        """Return whether a setting asks for anything: a feature that is off, or a single stage, does not."""
        off = value is None or value is False or (type(value) is int and value <= 1)
        return name not in self.not_replayed or not off

    def _refuse(self, place: str, line: str, told: set[str], known: Collection[str]) -> None:
        """Raise LogRefused if `told` has keys beyond the known ones."""
        keys = sorted(told.difference(known, ("kind",)))
        if keys:
            raise LogRefused(place, line, {name: self._why(name, known) for name in keys})

    def _why(self, name: str, known: Collection[str]) -> str:
        feature = self.not_replayed.get(name)
        return f"{feature}: not replayed" if feature else f"not understood{nearest(name, known)}"


_REQUEST_KEYS = frozenset(("id", "prompt", "out", "prio", "at", "after", "gap"))


def find_logs(place: Path) -> list[Path]:
    """Return the files under `place` (or itself) that may be logs, by their names, in order."""
    if place.is_file():
        return [place]
    if not place.is_dir():
        raise UserError(f"{place}: no such file or folder")
    return sorted(path for path in place.rglob("*") if path.name.endswith(SUFFIXES) and path.is_file())


def is_log(path: Path) -> bool:
    """Return False if the first line is a JSON object of something else, such as a row of a trace."""
    _, row = next(_rows(path), (1, {"kind": None}))
    return "kind" in row


def read_lines(path: Path) -> dict[str, list[Row]]:
    """Return the lines of a log by kind: one config, the requests in order of their ids, the steps."""
    lines: dict[str, list[Row]] = {kind: [] for kind in KINDS}
    number = 1
    for number, row in _rows(path):
        place, kind = f"{path}, line {number}", row.get("kind")
        if kind not in KINDS:
            raise UserError(f"{place}: kind {kind!r} is none of {', '.join(KINDS)}")
        if (kind == "config") != (number == 1):
            raise UserError(f"{place}: a log has one config line, its first")
        check_fields(place, row, _FIELDS[kind])
        if kind == "request":
            _check_request(place, row, lines)
        lines[kind].append(row)
    if not lines["config"]:
        raise UserError(f"{path}, line 1: the file is empty")
    for kind in ("request", "step"):
        told, found = lines["config"][0][f"{kind}s"], len(lines[kind])
        if told != found:
            raise UserError(f"{path}, line {number}: the log ends after {found} {kind} lines of {told}")
    return lines


def check_fields(place: str, row: Mapping[str, Any], fields: Mapping[str, type]) -> None:
    """Refuse a row that lacks one of the fields or has another type in it."""
    for name, wanted in fields.items():
        if name not in row:
            raise UserError(f"{place}: {name} is missing")
        value = row[name]
        fits = isinstance(value, (int, float) if wanted is float else wanted)
        if not fits or (isinstance(value, bool) and wanted is not bool):
            raise UserError(f"{place}: {name} is {value!r}, which is no {wanted.__name__}")


def _check_request(place: str, row: Row, lines: Mapping[str, list[Row]]) -> None:
    """Refuse requests out of order, prompts that are no runs, and arrivals that cannot be told."""
    if row["id"] != len(lines["request"]):
        raise UserError(f"{place}: id is {row['id']}, expected {len(lines['request'])}")
    if row["out"] < 1:
        raise UserError(f"{place}: out is {row['out']}, at least 1 is allowed")
    for run in row["prompt"]:
        if not (
            isinstance(run, list) and len(run) == 3 and all(isinstance(n, int) for n in run) and run[2] > 0
        ):
            raise UserError(f"{place}: prompt has {run!r}, which is no [segment, start, length]")
    if not row["prompt"]:
        raise UserError(f"{place}: prompt is empty")
    arrival = {"at": int} if "at" in row else {"after": int, "gap": int}
    check_fields(place, row, arrival)
    if "after" in arrival and not 0 <= row["after"] < lines["config"][0]["requests"]:
        raise UserError(f"{place}: after is {row['after']}, which is no request")


def _rows(path: Path) -> Iterator[tuple[int, Row]]:
    """Give each line's number and object."""
    number = 0
    try:
        with _opened(path) as file:
            for number, line in enumerate(file, start=1):
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise UserError(f"{path}, line {number}: not a JSON object")
                yield number, row
    except json.JSONDecodeError as error:
        raise UserError(f"{path}, line {number}: not valid JSON ({error.msg})") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}, line {number + 1}: not UTF-8 text") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path}, line {number + 1}: broken gzip ({error})") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from error


def _opened(path: Path) -> IO[str]:
    if path.name.endswith(".gz"):
        return gzip.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8")


@dataclass(frozen=True)
class GoldenLog:
    """A step-by-step log of an engine's scheduler."""

    file: str
    head: Row
    """The config line."""
    requests: list[Row]
    """The request lines, in order of their ids."""
    steps: list[Row]
    """The step lines."""

    @property
    def config(self) -> Row:
        """The engine's settings."""
        return self.head["config"]

    @classmethod
    def read(cls, path: Path) -> GoldenLog:
        """Read a log, gzipped or not: one JSON object per line, each with its `kind`.

        Raises UserError, naming file and line, if it is malformed.
        """
        lines = read_lines(path)
        return cls(str(path), lines["config"][0], lines["request"], lines["step"])


@dataclass(frozen=True)
class Difference:
    """The first step that differs."""

    step: int
    """The log's step counter."""
    ours: Row
    """The fields that differ, as the simulator decided them."""
    theirs: Row
    """The same fields in the log."""

    def __str__(self) -> str:
        parts = [f"{name}: {self.ours[name]} here, {self.theirs[name]} in the log" for name in self.ours]
        return f"step {self.step}: " + "; ".join(parts)


@dataclass(frozen=True)
class Comparison:
    """One log against its replay. After the first difference nothing more is compared."""

    file: str
    steps: int
    """Steps in the log."""
    steps_equal: int
    """Steps that agree in every compared field, up to the first difference."""
    first_difference: Difference | None = None
    fields: tuple[str, ...] = ()
    """The fields compared in each step."""

    @property
    def equal(self) -> bool:
        """Whether every step agrees."""
        return self.first_difference is None


def compare(log: GoldenLog, step: Callable[[int], Row], fields: tuple[str, ...]) -> Comparison:
    """Compare a log with what `step` returns for each of its counters, up to the first difference.

    A field that is absent on both sides is equal. A law of ours that breaks is a difference, in `broken`.
    """
    for done, theirs in enumerate(log.steps):
        try:
            ours = step(theirs["t"])
        except InvariantError as error:
            ours = {"broken": str(error)}
        looked_at = ("broken",) if "broken" in ours else fields
        parted = [name for name in looked_at if ours.get(name) != theirs.get(name)]
        if parted:
            difference = Difference(
                theirs["t"],
                {name: ours.get(name) for name in parted},
                {name: theirs.get(name) for name in parted},
            )
            return Comparison(log.file, len(log.steps), done, difference, fields)
    return Comparison(log.file, len(log.steps), len(log.steps), None, fields)
