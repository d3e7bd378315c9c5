"""Vidur's request CSVs (also written by Frontier): seconds from the start, and two lengths.

Vidur itself cuts prompts at its max_tokens option when it reads them; nothing is cut here. Frontier adds
session_id and block_hash_ids (`11|22`); the sessions replay open loop, at their recorded arrivals.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field

from simserve.core import Trace
from simserve.errors import TraceError
from simserve.workload.block_columns import adopt, checked_blocks
from simserve.workload.csv_table import CsvTable
from simserve.workload.draft import Draft, finish
from simserve.workload.made_arrivals import CHOICES, ArrivalOptions
from simserve.workload.readers.base import READERS, ReaderOptions
from simserve.workload.source import TraceFile

LENGTHS = ("num_prefill_tokens", "num_decode_tokens")
ARRIVAL = "arrived_at"
BLOCKS = "block_hash_ids"


class VidurOptions(ArrivalOptions):
    """What the file itself does not say."""

    block_tokens: int | None = Field(
        default=None,
        gt=0,
        description="Tokens per block_hash_id; by default 16, or what every row agrees on.",
    )
    tolerant: bool = Field(
        default=False, description="Accept ids that disagree with the lengths, and count them."
    )


@READERS.register("vidur")
class VidurReader:
    """CSV with num_prefill_tokens and num_decode_tokens."""

    Options: ClassVar[type[ReaderOptions]] = VidurOptions

    def sniff(self, file: TraceFile) -> bool:
        """Recognise the two length columns."""
        return file.header >= set(LENGTHS)

    def read(self, file: TraceFile, options: VidurOptions) -> Trace:
        """Read all rows. A file of lengths only needs `arrivals`."""
        table = CsvTable(file)
        table.require(LENGTHS)
        prompt_tokens, output_tokens = (table.tokens(name) for name in LENGTHS)
        draft = Draft(file, "vidur", np.zeros(table.rows, dtype=np.int64), prompt_tokens, output_tokens)
        draft.rows = table
        self._arrivals(draft, table, options)
        if BLOCKS in table.names:
            blocks, size, _ = checked_blocks(
                draft,
                table,
                BLOCKS,
                table.id_lists(BLOCKS),
                prompt_tokens,
                usual=16,
                given=options.block_tokens,
                tolerant=options.tolerant,
            )
            adopt(draft, table, BLOCKS, blocks, size)
        used = {*LENGTHS, ARRIVAL, BLOCKS}
        draft.labels = {name: table.objects(name) for name in table.names if name not in used}
        return finish(draft)

    def _arrivals(self, draft: Draft, table: CsvTable, options: VidurOptions) -> None:
        if ARRIVAL in table.names:
            options.check_recorded(table.file.path, ARRIVAL)
            draft.arrival_ns = table.times_ns(ARRIVAL)
            draft.assume("open loop: recorded arrivals in seconds; time 0 is the first")
            return
        if not options.given:
            raise TraceError(
                f"{table.file.path}: the file holds lengths only (no column {ARRIVAL}): set {CHOICES}"
            )
        draft.arrival_ns, how = options.made_ns(table.rows)
        draft.assume(how)
