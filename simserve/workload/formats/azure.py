"""Azure LLM inference traces of 2023 and 2024: a wall-clock stamp with seven decimals and two lengths."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np

from simserve.core import Trace
from simserve.workload.draft import Draft, finish
from simserve.workload.formats.base import READERS, WRITERS, ReaderOptions, column_losses, csv_bytes
from simserve.workload.source import TraceFile
from simserve.workload.tables.columns import stamps_ns
from simserve.workload.tables.csv import CsvTable

IMAGES = "NumImages"
COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


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
        arrival_ns = stamps_ns(table, "TIMESTAMP", table.text("TIMESTAMP").to_pylist())
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


# Azure LLM inference CSV. The stamps count from a date of our own: a trace knows no calendar.

_FIRST_STAMP = np.datetime64("2000-01-01T00:00:00", "ns")
_TICK_NS = 100


@WRITERS.register("azure")
class AzureWriter:
    """TIMESTAMP (seven decimals), ContextTokens, GeneratedTokens."""

    suffixes: ClassVar[tuple[str, ...]] = (".csv",)

    def losses(self, trace: Trace) -> list[str]:
        """Lost: everything but arrivals (to 100 ns) and lengths; labels become columns."""
        lost = column_losses(trace, "labels")
        finer = int(np.count_nonzero(trace.arrival_ns % _TICK_NS))
        return [*lost, f"{finer:,} stamps finer than 100 ns"] if finer else lost

    def encode(self, trace: Trace, path: Path) -> bytes:
        """Return the CSV; stamps are cut to 100 ns."""
        stamps = np.datetime_as_string(_FIRST_STAMP + trace.arrival_ns.astype("timedelta64[ns]"), unit="ns")
        return csv_bytes(
            {
                "TIMESTAMP": [text[:27].replace("T", " ") for text in stamps.tolist()],
                "ContextTokens": trace.prompt_tokens.tolist(),
                "GeneratedTokens": trace.output_tokens.tolist(),
                **{name: column.tolist() for name, column in trace.labels.items()},
            }
        )
