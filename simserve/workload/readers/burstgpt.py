"""BurstGPT's CSV (ChatGPT and GPT-4 logs): seconds from midnight of the first day, and two lengths.

Later files add Session ID and Elapsed time, so columns are read by name. Rows with 0 response tokens failed.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from simserve.core import Trace
from simserve.errors import TraceError
from simserve.workload.csv_table import CsvTable
from simserve.workload.draft import Draft, Kept, finish
from simserve.workload.readers.base import READERS, ReaderOptions
from simserve.workload.source import TraceFile

COLUMNS = ("Timestamp", "Request tokens", "Response tokens")
LABELS = ("Model", "Session ID", "Log Type")


class BurstGptOptions(ReaderOptions):
    """The format has no options."""


@READERS.register("burstgpt")
class BurstGptReader:
    """CSV with Timestamp, Request tokens and Response tokens."""

    Options: ClassVar[type[ReaderOptions]] = BurstGptOptions

    def sniff(self, file: TraceFile) -> bool:
        """Recognise the header, in any column order."""
        return file.header >= set(COLUMNS)

    def read(self, file: TraceFile, options: BurstGptOptions) -> Trace:
        """Read the rows that were answered; raises `TraceError` if none was."""
        table = CsvTable(file)
        table.require(COLUMNS)
        arrival_ns = table.times_ns("Timestamp")
        prompt_tokens, output_tokens = table.tokens("Request tokens"), table.tokens("Response tokens")
        answered = np.flatnonzero(output_tokens > 0)
        if not len(answered):
            raise TraceError(f"{file.path}: every row has 0 response tokens, so every request failed")
        draft = Draft(
            file,
            "burstgpt",
            arrival_ns[answered],
            prompt_tokens[answered],
            output_tokens[answered],
            labels={name: table.objects(name)[answered] for name in LABELS if name in table.names},
            rows=Kept(table, answered),
        )
        draft.assume("open loop: recorded arrivals in seconds; time 0 is the first; no prefix information")
        draft.change(table.rows - len(answered), "rows with 0 response tokens failed: left out")
        return finish(draft)
