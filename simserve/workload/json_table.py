"""JSON lines as a table: nested keys become `usage.prompt_tokens`."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from simserve.errors import TraceError, nearest
from simserve.workload.jsonl import JsonRows
from simserve.workload.select import Int64
from simserve.workload.source import TraceFile


class JsonTable:
    """The same questions as to a CSV file. Lists inside a row are values that no column allows."""

    def __init__(self, file: TraceFile) -> None:
        """Raises `TraceError` for anything but JSON objects."""
        self._take(JsonRows(file))

    @classmethod
    def of(cls, rows: JsonRows) -> JsonTable:
        """Return rows that were read already as a table."""
        made = cls.__new__(cls)
        made._take(rows)
        return made

    def _take(self, found: JsonRows) -> None:
        self.file = found.file
        self._rows = JsonRows.of(found.file, found.lines, [_flat(row) for row in found])
        self.rows = len(self._rows)
        self.names: list[str] = list(dict.fromkeys(key for row in self._rows for key in row))

    @staticmethod
    def flat(row: dict[str, Any]) -> dict[str, Any]:
        """Return a row with its nested keys joined by dots."""
        return _flat(row)

    def require(self, columns: tuple[str, ...]) -> None:
        """Raise a `TraceError` naming the first of `columns` that no row has."""
        for column in columns:
            if column not in self.names:
                raise TraceError(f"{self.file.path}: no field {column}{nearest(column, self.names)}")

    def tokens(self, name: str) -> Int64:
        """Return a column of lengths."""
        return self._rows.tokens(name)

    def integers(self, name: str) -> Int64:
        """Return a column of whole numbers."""
        values = [row.get(name) for row in self._rows]
        for i, value in enumerate(values):
            if type(value) is not int or not -(2**63) <= value < 2**63:
                self._rows.refuse(i, name, "a whole number")
        return np.array(values, dtype=np.int64)

    def times_ns(self, name: str, unit_ns: int) -> Int64:
        """Return a column of times."""
        return self._rows.times_ns(name, unit_ns)

    def objects(self, name: str) -> NDArray[np.object_]:
        """Return a column as text; missing values are empty."""
        values = [row.get(name) for row in self._rows]
        return np.array(["" if value is None else str(value) for value in values], dtype=object)

    def id_lists(self, name: str) -> list[list[str]]:
        """Lists are not kept: there are none."""
        return [[] for _ in range(self.rows)]

    def fail(self, row: int, message: str) -> NoReturn:
        """Raise a `TraceError` about one row."""
        self._rows.fail(row, message)

    def line_of(self, row: int) -> int:
        """Return the line of a row."""
        return self._rows.line_of(row)


def _flat(row: dict[str, Any], prefix: str = "", depth: int = 0) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, dict) and depth < 6:
            flat |= _flat(value, f"{prefix}{key}.", depth + 1)
        else:
            flat[prefix + key] = value
    return flat
