"""The rows of a table of starts of real engines.

A column that is blank means the engine's default. A value that cannot be read is an error with its line.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from simserve.errors import TraceError, nearest

OUTCOMES = ("started", "no_kv_room", "oom_load", "oom_after_pool", "other")
_NEEDED = ("run_id", "engine", "version", "model", "gpu", "outcome")


@dataclass(frozen=True)
class MemoryRow:
    """One start. Reading a column that is not a number raises `TraceError` with its line."""

    cells: Mapping[str, str]
    place: str
    """File and line."""

    def text(self, column: str, default: str = "") -> str:
        """Return a cell, or `default` where it is blank."""
        return (self.cells.get(column) or "").strip() or default

    def number(self, column: str) -> float | None:
        """Return a number, None if the cell is blank."""
        text = self.text(column)
        if not text:
            return None
        try:
            return float(text)
        except ValueError:
            raise TraceError(f"{self.place}, column {column}: {text!r} is not a number") from None

    def count(self, column: str) -> int | None:
        """Return a whole number of at least 1, None if the cell is blank."""
        value = self.number(column)
        if value is None:
            return None
        if value < 1 or value != int(value):
            raise TraceError(f"{self.place}, column {column}: {value:g}, allowed are whole numbers from 1")
        return int(value)

    def word(self, column: str, allowed: tuple[str, ...], default: str) -> str:
        """Return one of the allowed words."""
        text = self.text(column, default)
        if text not in allowed:
            known = f"allowed are {', '.join(allowed)}{nearest(text, allowed)}"
            raise TraceError(f"{self.place}, column {column}: {text!r}, {known}")
        return text

    def yes(self, column: str, default: str = "no") -> bool:
        """Return True for `yes`."""
        return self.word(column, ("yes", "no"), default) == "yes"


def read_memory_rows(path: Path) -> list[MemoryRow]:
    """Return the rows of a table of starts; raises `TraceError` naming the column that it lacks."""
    if not path.is_file():
        raise TraceError(f"{path}: no such file")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            table = csv.DictReader(file, strict=True)
            for column in _NEEDED:
                if column not in (table.fieldnames or ()):
                    raise TraceError(f"{path}, line 1: lacks the column {column!r} of a table of starts")
            rows = [_row(cells, f"{path}, line {table.line_num}") for cells in table]
    except (UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{path}: not a CSV file in UTF-8: {error}") from error
    if not rows:
        raise TraceError(f"{path}: holds no rows")
    return rows


def _row(cells: Mapping[str | None, str | list[str]], place: str) -> MemoryRow:
    if None in cells:
        raise TraceError(f"{place}: more cells than columns")
    row = MemoryRow({str(name): str(cell or "") for name, cell in cells.items()}, place)
    row.word("outcome", OUTCOMES, "")
    row.yes("score", "yes")
    return row
