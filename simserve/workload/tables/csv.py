"""A CSV file as columns of text, parsed fast.

The slow second look that finds the line of a bad value is only taken once there is one.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from functools import cached_property
from typing import TYPE_CHECKING, NoReturn

import numpy as np
from numpy.typing import NDArray

from simserve.errors import TraceError, nearest
from simserve.units import NS_PER_S
from simserve.workload.source import TraceFile, shown

if TYPE_CHECKING:
    import pyarrow as pa


Int64 = NDArray[np.int64]
UNITS_NS = {"s": NS_PER_S, "ms": 1_000_000, "us": 1_000, "ns": 1}
EPOCH_S = (1e9, 5e9)
"""Seconds since 1970 of the years 2001 to 2128: what a wall clock may show."""
MAX_TOKENS = 2**31 - 1
"""Longest length accepted: anything above is not a number of tokens."""
MAX_NS = 2**62
"""Latest time accepted, about 146 years."""


class CsvTable:
    """Columns of a CSV file with a header. Values are checked when a column is asked for."""

    def __init__(self, file: TraceFile) -> None:
        """Raises `TraceError` for a ragged row, a repeated column name, or a header with no rows."""
        import pyarrow as pa
        from pyarrow import csv as arrow_csv

        self.file = file
        names = self._header()
        types = dict.fromkeys(names, pa.string())
        try:
            table = arrow_csv.read_csv(
                pa.py_buffer(file.data),
                read_options=arrow_csv.ReadOptions(
                    use_threads=False, column_names=names, skip_rows=self._skip
                ),
                convert_options=arrow_csv.ConvertOptions(column_types=types, strings_can_be_null=False),
            )
        except pa.ArrowInvalid as error:
            self._fail_ragged(names, error)
        self.names = names
        self._columns = {name: table.column(name) for name in names}
        self.rows = table.num_rows
        if not self.rows:
            raise TraceError(f"{file.path}: the file has a header but no rows; a trace needs at least one")

    def require(self, columns: tuple[str, ...]) -> None:
        """Raise a `TraceError` naming the first of `columns` that the header lacks."""
        for column in columns:
            if column not in self.names:
                has = ", ".join(self.names)
                raise TraceError(
                    f"{self.file.path}: no column {column}{nearest(column, self.names)}; has: {has}"
                )

    def text(self, name: str) -> pa.Array:
        """Return a column as Arrow strings."""
        return self._columns[name].combine_chunks()

    def objects(self, name: str) -> NDArray[np.object_]:
        """Return a column as Python strings."""
        return np.array(self._columns[name].to_pylist(), dtype=object)

    def tokens(self, name: str) -> Int64:
        """Return a column of lengths: whole numbers from 0, written with digits only."""
        values = self._integers(name)
        if values is None or (values < 0).any() or (values > MAX_TOKENS).any():
            self.fail_first(
                name, _is_tokens, f"a whole number of tokens from 0 to {MAX_TOKENS:,}, digits only"
            )
        return values

    def integers(self, name: str) -> Int64:
        """Return a column of whole numbers of any sign."""
        values = self._integers(name)
        if values is None:
            self.fail_first(name, _is_int64, "a whole number, digits only")
        return values

    def times_ns(self, name: str, unit_ns: int = NS_PER_S) -> Int64:
        """Return a column of non-negative decimal times in units of `unit_ns`, exact to the nanosecond."""
        texts = self._columns[name].to_pylist()
        try:
            values = [decimal_ns(text, unit_ns) for text in texts]
        except ValueError:
            bad = next(text for text in texts if not _is_time(text, unit_ns))
            self.fail_first(name, lambda text: _is_time(text, unit_ns), wanted_time(bad, unit_ns))
        return np.array(values, dtype=np.int64)

    def id_lists(self, name: str) -> list[list[str]]:
        """Return a column of ids written `11|22|33`; an empty field is an empty list."""
        return [text.split("|") if text else [] for text in self._columns[name].to_pylist()]

    def fail_first(self, name: str, good: Callable[[str], bool], wanted: str) -> NoReturn:
        """Raise about the first value of a column that is not `good`."""
        for row, text in enumerate(self._columns[name].to_pylist()):
            if not good(text):
                found = "is missing" if not text.strip() else f"is {shown(text)}"
                self.fail(row, f"column {name} {found}; allowed: {wanted}")
        raise AssertionError(f"{self.file.path}: column {name} was refused, but every value is good")

    def fail(self, row: int, message: str) -> NoReturn:
        """Raise a `TraceError` about the line that holds data row `row` (0 for the first)."""
        self.file.fail(self.line_of(row), message)

    def line_of(self, row: int) -> int:
        """Return the line number of data row `row`; blank lines count as lines but not as rows."""
        reader = csv.reader(io.StringIO(self.file.text(), newline=""))
        for seen, _ in enumerate(record for record in reader if record):
            if seen == row + 1:
                return reader.line_num
        raise AssertionError(f"{self.file.path}: no data row {row}")

    def _integers(self, name: str) -> Int64 | None:
        import pyarrow as pa

        try:
            return int64_values(self.text(name).cast(pa.int64()))
        except pa.ArrowInvalid:
            return None

    @cached_property
    def _skip(self) -> int:
        """Lines up to and including the header."""
        lines = self.file.data.splitlines()
        return next(line for line, text in enumerate(lines, start=1) if text.strip())

    def _header(self) -> list[str]:
        names = [name.strip() for name in next(csv.reader([self.file.head]))]
        for name in names:
            if names.count(name) > 1:
                self.file.fail(self._skip, f"column {shown(name)} appears twice in the header; allowed: once")
        return names

    def _fail_ragged(self, names: list[str], error: Exception) -> NoReturn:
        reader = csv.reader(io.StringIO(self.file.text(), newline=""))
        for record in reader:
            if record and len(record) != len(names):
                quote = " (a quote that is not closed?)" if any("\n" in cell for cell in record) else ""
                self.file.fail(
                    reader.line_num,
                    f"{len(record)} columns where the header has {len(names)}: {shown(record)}{quote}; "
                    "allowed: one value a column",
                )
        raise TraceError(f"{self.file.path}: not a readable CSV: {' '.join(str(error).split())}") from error


def int64_values(column: pa.Array) -> Int64:
    """Return an Arrow int64 array without nulls as numpy (Arrow's own `to_numpy` would import pandas)."""
    buffer = column.buffers()[1]
    return np.frombuffer(buffer, dtype=np.int64, count=len(column), offset=8 * column.offset)


def decimal_ns(text: str | int | Decimal, unit_ns: int) -> int:
    """Return a decimal time in units of `unit_ns` as nanoseconds, rounded half to even if finer.

    Raises `ValueError` if it is no number, not finite, negative, or beyond about 146 years.
    """
    try:
        value = Decimal(text) * unit_ns
    except (InvalidOperation, TypeError) as error:
        raise ValueError(text) from error
    if not value.is_finite() or value < 0 or value > MAX_NS:
        raise ValueError(text)
    return int(value.to_integral_value())


def wanted_time(value: object, unit_ns: int) -> str:
    """Return what is allowed where a time is not; a stamp since 1970 in a finer unit is named."""
    wanted = "a time: a finite number, not negative"
    if re.match(r"\d{4}-\d\d-\d\d", str(value)):
        return f"{wanted}; calendar stamps stand in a column called timestamp"
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        return wanted
    if not number.is_finite() or number * unit_ns <= MAX_NS:
        return wanted
    unit = next(name for name, ns in UNITS_NS.items() if ns == unit_ns)
    finer = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
    for name, word in finer.items():
        ns = UNITS_NS[name]
        if ns < unit_ns and EPOCH_S[0] <= number * ns / NS_PER_S <= EPOCH_S[1]:
            return f"a time in {unit}; is this in {word} since 1970?"
    return f"a time in {unit}: at most {MAX_NS // unit_ns:,}"


def _is_time(text: str, unit_ns: int) -> bool:
    try:
        decimal_ns(text, unit_ns)
    except ValueError:
        return False
    return True


def _is_int64(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdigit() and -(2**63) <= int(text) < 2**63


def _is_tokens(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) <= MAX_TOKENS
