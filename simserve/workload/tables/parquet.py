"""A Parquet file as checked columns: the same questions as to a CSV file, asked of typed values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from simserve.errors import TraceError, nearest
from simserve.units import NS_PER_S
from simserve.workload.blocks import Int64
from simserve.workload.source import TraceFile, shown
from simserve.workload.tables.csv import MAX_NS, MAX_TOKENS, decimal_ns, int64_values, wanted_time


class ParquetTable:
    """Columns of a Parquet file. Values are checked when a column is asked for."""

    def __init__(self, file: TraceFile) -> None:
        """Raises `TraceError` for a damaged or an empty file."""
        import pyarrow as pa
        from pyarrow import parquet

        self.file = file
        try:
            self._table = parquet.read_table(pa.BufferReader(file.data))
            self.names: list[str] = self._table.column_names
        except (pa.ArrowException, OSError, ValueError) as error:
            raise TraceError(f"{file.path}: damaged Parquet file: {' '.join(str(error).split())}") from error
        self.rows: int = self._table.num_rows
        if not self.rows:
            raise TraceError(f"{file.path}: the file has columns but no rows; a trace needs at least one")

    @staticmethod
    def names_of(file: TraceFile) -> list[str]:
        """Return the columns of a Parquet file; raises `TraceError` if it is damaged."""
        import pyarrow as pa
        from pyarrow import parquet

        try:
            return parquet.read_schema(pa.BufferReader(file.data)).names
        except (pa.ArrowException, OSError, ValueError) as error:
            raise TraceError(f"{file.path}: damaged Parquet file: {' '.join(str(error).split())}") from error

    def require(self, columns: tuple[str, ...]) -> None:
        """Raise a `TraceError` naming the first of `columns` that is not there."""
        for column in columns:
            if column not in self.names:
                has = ", ".join(self.names)
                raise TraceError(
                    f"{self.file.path}: no column {column}{nearest(column, self.names)}; has: {has}"
                )

    def tokens(self, name: str) -> Int64:
        """Return a column of lengths: whole numbers from 0."""
        return self._numbers(name, _is_tokens, f"a whole number of tokens from 0 to {MAX_TOKENS:,}")

    def integers(self, name: str) -> Int64:
        """Return a column of whole numbers of any sign."""
        return self._numbers(name, _is_int64, "a whole number")

    def times_ns(self, name: str, unit_ns: int = NS_PER_S) -> Int64:
        """Return a column of non-negative times, rounded to the nanosecond."""
        if (
            unit_ns == 1
            and (whole := self._int64(name)) is not None
            and 0 <= whole.min() <= whole.max() <= MAX_NS
        ):
            return whole
        values = self._values(name)
        times = np.empty(len(values), dtype=np.int64)
        for row, value in enumerate(values):
            try:
                # repr gives the shortest decimal that stands for a float, so 0.1 is 100 ms and no more.
                times[row] = decimal_ns(repr(value) if isinstance(value, float) else value, unit_ns)
            except ValueError:
                self._refuse(row, name, value, wanted_time(value, unit_ns))
        return times

    def objects(self, name: str) -> NDArray[np.object_]:
        """Return a column as text; missing values become empty."""
        return np.array(["" if value is None else str(value) for value in self._values(name)], dtype=object)

    def id_lists(self, name: str) -> list[list[Any]]:
        """Return a column of lists of ids."""
        values = self._values(name)
        for row, value in enumerate(values):
            if not isinstance(value, list) or any(type(item) not in (int, str) for item in value):
                self._refuse(row, name, value, "a list of ids")
        return values

    def fail(self, row: int, message: str) -> NoReturn:
        """Raise a `TraceError` about row `row` (counted from 1 in the message: Parquet has no lines)."""
        raise TraceError(f"{self.file.path}: row {row + 1}: {message}")

    def line_of(self, row: int) -> int:
        """Return the number of a row, counted from 1."""
        return row + 1

    def _int64(self, name: str) -> Int64 | None:
        """Return a column of int64 without missing values as it lies, None for any other."""
        import pyarrow as pa

        column = self._table.column(name).combine_chunks()
        return int64_values(column) if column.type == pa.int64() and not column.null_count else None

    def _numbers(self, name: str, good: Callable[[Any], bool], wanted: str) -> Int64:
        whole = self._int64(name)
        if whole is not None and good(int(whole.min())) and good(int(whole.max())):
            return whole
        values = self._values(name)
        for row, value in enumerate(values):
            if not good(value):
                self._refuse(row, name, value, wanted)
        return np.array(values, dtype=np.int64)

    def _refuse(self, row: int, name: str, value: Any, wanted: str) -> NoReturn:
        found = "is missing" if value is None else f"is {shown(value)}"
        self.fail(row, f"column {name} {found}; allowed: {wanted}")

    def _values(self, name: str) -> list[Any]:
        return self._table.column(name).to_pylist()


def _is_tokens(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_TOKENS


def _is_int64(value: Any) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63
