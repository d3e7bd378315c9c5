"""Azure LLM inference traces of 2023 and 2024: a wall-clock stamp with seven decimals and two lengths."""

from __future__ import annotations

import re
from typing import ClassVar

import numpy as np

from simserve.core import Trace
from simserve.workload.csv_table import CsvTable, Int64, int64_values
from simserve.workload.draft import Draft, finish
from simserve.workload.readers.base import READERS, ReaderOptions
from simserve.workload.source import TraceFile, shown

IMAGES = "NumImages"
COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
ZONE = re.compile(r"(Z|[+-]\d\d(:?\d\d)?)\s*$")
_WANTED = "a stamp such as 2023-11-16 18:15:46.6805900"


class AzureOptions(ReaderOptions):
    """The format has no options."""


@READERS.register("azure")
class AzureReader:
    """CSV with the header TIMESTAMP,ContextTokens,GeneratedTokens."""

    Options: ClassVar[type[ReaderOptions]] = AzureOptions

    def sniff(self, file: TraceFile) -> bool:
        """Recognise the header, in any column order."""
        return file.header >= set(COLUMNS)

    def read(self, file: TraceFile, options: AzureOptions) -> Trace:
        """Read all rows; stamps are parsed as integers, so all their decimals survive."""
        table = CsvTable(file)
        table.require(COLUMNS)
        arrival_ns = stamps_ns(table, "TIMESTAMP")
        draft = Draft(
            file,
            "azure",
            arrival_ns,
            prompt_tokens=table.tokens("ContextTokens"),
            output_tokens=table.tokens("GeneratedTokens"),
            labels={name: table.objects(name) for name in table.names if name not in COLUMNS},
            rows=table,
        )
        first = table.objects("TIMESTAMP")[int(np.argmin(arrival_ns))]
        draft.assume(f"wall-clock stamps, exact to 1 ns; time 0 is {first}")
        draft.assume("open loop: recorded arrivals; no prefix information")
        if IMAGES in table.names:
            images = table.tokens(IMAGES)
            draft.assume(
                f"{int(images.sum()):,} images in {int((images > 0).sum()):,} requests ({IMAGES}) cost "
                "nothing here: only tokens are simulated"
            )
        return finish(draft)


def stamps_ns(table: CsvTable, name: str) -> Int64:
    """Return a column of calendar stamps as nanoseconds since 1970, exact (up to nine decimals)."""
    import pyarrow as pa

    texts = table.text(name)
    first = texts[0].as_py()
    zoned = bool(ZONE.search(first[10:]))
    stamp = pa.timestamp("ns", "UTC") if zoned else pa.timestamp("ns")
    try:
        return int64_values(texts.cast(stamp).cast(pa.int64()))
    except pa.ArrowInvalid:
        bad = next(text for text in texts.to_pylist() if not _is_stamp(text, stamp))
        other = pa.timestamp("ns") if zoned else pa.timestamp("ns", "UTC")
        wanted = _WANTED
        if _is_stamp(bad, other):
            has, lacks = ("a", "none") if zoned else ("no", "one")
            wanted = (
                f"one way of writing: the first row, {shown(first)}, has {has} time zone, this has {lacks}"
            )
        table.fail_first(name, lambda text: _is_stamp(text, stamp), wanted)


def _is_stamp(text: str, stamp: object) -> bool:
    import pyarrow as pa

    try:
        pa.array([text]).cast(stamp)  # type: ignore[arg-type]
    except pa.ArrowInvalid:
        return False
    return True
