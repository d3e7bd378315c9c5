"""JSON lines, or a JSON list, as rows that know their line; numbers keep every digit that was written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from simserve.errors import TraceError, nearest
from simserve.workload.blocks import Int64
from simserve.workload.source import TraceFile, elements, is_lines, list_start, shown
from simserve.workload.tables.csv import MAX_TOKENS, decimal_ns, wanted_time

_ABSENT = object()
_ALLOWED = "allowed: a JSON object a line, or a list of objects"


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object; raises `ValueError` for a key that is there twice: one value would be lost."""
    row = dict(pairs)
    if len(row) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {next(key for key in keys if keys.count(key) > 1)!r} appears twice")
    return row


class JsonRows:
    """The objects of a file, with columns checked when asked for."""

    def __init__(self, file: TraceFile) -> None:
        """Read JSON lines, a list of objects, `{"data": [...]}`, or one object over several lines.

        Raises `TraceError` for a row that is no JSON object. Blank lines are passed over.
        """
        self.file = file
        self.lines: list[int] = []
        self.rows: list[dict[str, Any]] = []
        text, decoder = (
            file.text(),
            json.JSONDecoder(parse_float=Decimal, parse_constant=str, object_pairs_hook=_each_key_once),
        )
        start = list_start(text)
        if start is not None:
            self._read_list(text, start, decoder)
        elif not self._read_whole(text, decoder):
            for line, written in enumerate(text.split("\n"), start=1):
                if written and not written.isspace():
                    self._add(line, self._object(line, written, decoder.decode))
        if not self.rows:
            raise TraceError(f"{file.path}: no request in the file; a trace needs at least one")

    @classmethod
    def of(cls, file: TraceFile, lines: list[int], rows: list[dict[str, Any]]) -> JsonRows:
        """Return rows that were taken out of other rows, which stood on these lines."""
        made = cls.__new__(cls)
        made.file, made.lines, made.rows = file, lines, rows
        return made

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def fail(self, row: int, message: str) -> NoReturn:
        """Raise a `TraceError` about one row."""
        self.file.fail(self.lines[row], message)

    def line_of(self, row: int) -> int:
        """Return the line of a row."""
        return self.lines[row]

    def keys(self) -> set[str]:
        """Return every key that occurs in any row."""
        return set().union(*self.rows)

    def tokens(self, key: str) -> Int64:
        """Return a column of lengths: whole numbers from 0."""
        values = [row.get(key, _ABSENT) for row in self.rows]
        for i, value in enumerate(values):
            if type(value) is not int or not 0 <= value <= MAX_TOKENS:
                if (
                    isinstance(value, str)
                    and value.isascii()
                    and value.isdigit()
                    and int(value) <= MAX_TOKENS
                ):
                    values[i] = int(value)
                else:
                    self.refuse(i, key, f"a whole number of tokens from 0 to {MAX_TOKENS:,}, digits only")
        return np.array(values, dtype=np.int64)

    def times_ns(self, key: str, unit_ns: int, rows: Iterable[int] | None = None) -> Int64:
        """Return a column of non-negative times; only `rows` need one, if given (others are 0)."""
        times = np.zeros(len(self.rows), dtype=np.int64)
        for i in range(len(self.rows)) if rows is None else rows:
            value = self.rows[i].get(key, _ABSENT)
            try:
                if type(value) is bool:
                    raise ValueError(value)
                times[i] = decimal_ns(value, unit_ns)  # type: ignore[arg-type]
            except ValueError:
                self.refuse(i, key, wanted_time(value, unit_ns))
        return times

    def refuse(self, row: int, key: str, wanted: str) -> NoReturn:
        """Raise about the value of `key` in a row: missing, or not what is wanted."""
        value = self.rows[row].get(key, _ABSENT)
        if value is _ABSENT:
            found = f"is missing{nearest(key, self.rows[row])}"
        else:
            found = f"is {shown(value)}"
        self.fail(row, f"field {key} {found}; allowed: {wanted}")

    def _read_list(self, text: str, start: int, decoder: json.JSONDecoder) -> None:
        line, seen = 1, 0
        try:
            for begin, _, row in elements(text, start, decoder):
                line, seen = line + text.count("\n", seen, begin), begin
                self._add(line, row)
        except json.JSONDecodeError as error:
            self.file.fail(error.lineno, f"not JSON ({error.msg} at column {error.colno}); {_ALLOWED}")
        except (ValueError, RecursionError) as error:
            self.file.fail(
                line, f"JSON that cannot be read here or in the next element ({error}); {_ALLOWED}"
            )

    def _read_whole(self, text: str, decoder: json.JSONDecoder) -> bool:
        """Read one object that lies over several lines; return whether the file is that."""
        if not text.lstrip().startswith("{") or is_lines(text):
            return False
        try:
            row = decoder.decode(text)
        except (ValueError, RecursionError):
            return False
        self._add(text[: text.index("{")].count("\n") + 1, row)
        return True

    def _add(self, line: int, row: Any) -> None:
        if not isinstance(row, dict):
            self.file.fail(line, f"a JSON object is expected, not {shown(row)}; {_ALLOWED}")
        self.lines.append(line)
        self.rows.append(row)

    def _object(self, line: int, text: str, decode: Any) -> Any:
        try:
            return decode(text)
        except json.JSONDecodeError as error:
            at = f"{error.msg} at column {error.colno}"
            self.file.fail(line, f"not JSON ({at}): {shown(text.strip())}; {_ALLOWED}")
        except (ValueError, RecursionError) as error:
            self.file.fail(line, f"JSON that cannot be read ({error}): {shown(text.strip())}; {_ALLOWED}")


# JSON lines as a table: nested keys become `usage.prompt_tokens`.


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
