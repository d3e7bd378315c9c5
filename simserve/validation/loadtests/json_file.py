"""A file of measurements (JSON, JSON lines or YAML) as records that know their place in it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from simserve.errors import TraceError, nearest
from simserve.workload.source import TraceFile, shown


class Record:
    """A mapping of a file, with values checked when asked for."""

    def __init__(self, place: str, data: Mapping[str, Any]) -> None:
        """`place` is what messages call it: `bench.jsonl: line 3`."""
        self.place, self.data = place, data

    def __contains__(self, key: str) -> bool:
        return self.data.get(key) is not None

    def fail(self, message: str) -> NoReturn:
        """Raise a `TraceError` about this record."""
        raise TraceError(f"{self.place}: {message}")

    def get(self, key: str) -> Any:
        """Return a value, None if it is absent or null."""
        return self.data.get(key)

    def number(self, key: str) -> float:
        """Return a finite number; raises `TraceError` if it is missing or something else."""
        value = self.data.get(key)
        if value is None:
            self.fail(f"no {key}{nearest(key, self.data)}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            self.fail(f"{key} is {shown(value)}; allowed: a finite number")
        return value

    def maybe(self, key: str) -> float | None:
        """Return a finite number, None if it is absent or null."""
        return self.number(key) if key in self else None

    def count(self, key: str) -> int:
        """Return a whole number from 0."""
        value = self.number(key)
        if value < 0 or value != int(value):
            self.fail(f"{key} is {shown(value)}; allowed: a whole number from 0")
        return int(value)

    def part(self, key: str) -> Record:
        """Return the mapping at `key`; an empty one if it is absent or null."""
        value = self.data.get(key) or {}
        if not isinstance(value, Mapping):
            self.fail(f"{key} is {shown(value)}; a mapping is expected")
        return Record(f"{self.place}: {key}", value)

    def list(self, key: str) -> list[Any]:
        """Return the list at `key`; raises `TraceError` if there is none."""
        value = self.data.get(key)
        if not isinstance(value, list):
            found = "missing" + nearest(key, self.data) if value is None else shown(value)
            self.fail(f"{key} is {found}; a list is expected")
        return value


class JsonFile:
    """A file of measurements; gzip and a byte order mark are taken off."""

    def __init__(self, path: Path) -> None:
        """Raises `TraceError` if the file is missing, empty or damaged."""
        self.trace_file = TraceFile.open(path)
        self.name = self.trace_file.path.name
        if not self.trace_file.data.strip():
            raise TraceError(f"{path}: the file is empty; a load test holds at least one request")

    @cached_property
    def records(self) -> list[Record]:
        """The file as one record, or one per line (or per element of a list at the top)."""
        text = self.trace_file.text()
        try:
            whole = json.loads(text)
        except RecursionError as error:
            raise TraceError(f"{self.name}: JSON nested too deep to read") from error
        except json.JSONDecodeError as error:
            if not text.lstrip().startswith(("{", "[")):
                return [Record(self.name, _mapping(self.name, _yaml(self.name, text)))]
            lines = [(i, line) for i, line in enumerate(text.splitlines(), 1) if line.strip()]
            if len(lines) < 2:
                raise TraceError(f"{self.name}: line {error.lineno}: not JSON: {error.msg}") from error
            return [Record(f"{self.name}: line {i}", _parsed(f"{self.name}: line {i}", t)) for i, t in lines]
        if isinstance(whole, list):
            if not whole:
                raise TraceError(f"{self.name}: an empty list; a load test holds at least one request")
            return [Record(f"{self.name}[{i}]", _mapping(self.name, one)) for i, one in enumerate(whole)]
        return [Record(self.name, _mapping(self.name, whole))]

    @property
    def first(self) -> Record:
        """The first record: what formats are recognised by."""
        return self.records[0]

    @property
    def is_list(self) -> bool:
        """Whether the file is a JSON list."""
        return self.trace_file.head.startswith("[")


def _parsed(place: str, text: str) -> Mapping[str, Any]:
    try:
        return _mapping(place, json.loads(text))
    except json.JSONDecodeError as error:
        raise TraceError(f"{place}: not JSON ({error.msg} at column {error.colno})") from error
    except RecursionError as error:
        raise TraceError(f"{place}: JSON nested too deep to read") from error


def _mapping(place: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TraceError(f"{place}: a mapping of keys is expected, not {shown(value)}")
    return value


def _yaml(place: str, text: str) -> Any:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        return YAML(typ="safe").load(text)
    except YAMLError as error:
        raise TraceError(f"{place}: neither JSON nor YAML: {' '.join(str(error).split())}") from error
