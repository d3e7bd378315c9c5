"""Calendar stamps as nanoseconds since 1970, to nine decimals; with a time zone in all rows or in none."""

from __future__ import annotations

import re
from typing import NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from simserve.workload.csv_table import MAX_NS, int64_values
from simserve.workload.source import TraceFile, shown

Int64 = NDArray[np.int64]
_DAY = re.compile(r"\d{4}-\d\d-\d\d([T ]|$)")
_ZONE = re.compile(r"(Z|[+-]\d\d(:?\d\d)?)$")


class _Rows(Protocol):
    file: TraceFile

    def fail(self, row: int, message: str) -> NoReturn: ...


def is_stamp(text: str) -> bool:
    """Return whether a value looks like a calendar stamp."""
    return bool(_DAY.match(text.strip()))


def stamps_ns(table: _Rows, name: str, texts: list[str]) -> Int64:
    """Return the stamps; ` UTC` at the end is a zone. Raises `TraceError` about the first that is none."""
    import pyarrow as pa

    if any(text.endswith("UTC") for text in texts):
        texts = [re.sub(r"\s*UTC$", "Z", text) for text in texts]
    zoned = bool(_ZONE.search(texts[0][10:]))
    stamp = pa.timestamp("ns", "UTC") if zoned else pa.timestamp("ns")
    try:
        values = int64_values(pa.array(texts, pa.string()).cast(stamp).cast(pa.int64()))
    except pa.ArrowInvalid:
        for row, text in enumerate(texts):
            if _ok(text, stamp):
                continue
            if _ok(text, pa.timestamp("ns") if zoned else pa.timestamp("ns", "UTC")):
                has, lacks = ("a", "none") if zoned else ("no", "one")
                table.fail(
                    row,
                    f"column {name} is {shown(text)}; the first row, {shown(texts[0])}, has {has} time zone, "
                    f"this has {lacks}: allowed is one way of writing",
                )
            found = f"is {shown(text)}" if text else "is missing"
            table.fail(
                row,
                f"column {name} {found}; allowed is a stamp such as 2023-11-16 18:15:46.6805900",
            )
        raise
    if values.min() < 0 or values.max() > MAX_NS:
        row = int(np.argmax((values < 0) | (values > MAX_NS)))
        table.fail(row, f"column {name} is {shown(texts[row])}; allowed are stamps from 1970 to 2116")
    return values


def _ok(text: str, stamp: object) -> bool:
    import pyarrow as pa

    try:
        pa.array([text]).cast(stamp)  # type: ignore[arg-type]
    except pa.ArrowInvalid:
        return False
    return True
