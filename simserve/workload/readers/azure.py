"""Azure LLM inference traces of 2023 and 2024: a wall-clock stamp with seven decimals and two lengths."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from simserve.core import Trace
from simserve.workload.csv_table import CsvTable
from simserve.workload.draft import Draft, finish
from simserve.workload.readers.base import READERS, ReaderOptions
from simserve.workload.source import TraceFile
from simserve.workload.stamps import stamps_ns

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
