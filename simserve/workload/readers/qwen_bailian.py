"""Qwen-Bailian usage traces: Mooncake's fields in other units (seconds, 16-token blocks), with chat ids.

Every turn has a recorded stamp and its whole prompt, so turns replay open loop.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field

from simserve.core import Trace
from simserve.units import NS_PER_S
from simserve.workload.block_columns import adopt, checked_blocks
from simserve.workload.draft import Draft, finish
from simserve.workload.jsonl import JsonRows
from simserve.workload.readers.base import READERS, ReaderOptions
from simserve.workload.readers.mooncake import IDS, id_lists
from simserve.workload.source import TraceFile

KEPT = ("parent_chat_id", "type", "turn")


class QwenBailianOptions(ReaderOptions):
    """What the file itself does not say."""

    block_tokens: int | None = Field(
        default=None, gt=0, description="Tokens per hash id; by default 16, or what every row agrees on."
    )
    tolerant: bool = Field(
        default=False, description="Accept ids that disagree with the lengths; count them."
    )


@READERS.register("qwen-bailian")
class QwenBailianReader:
    """JSON lines with chat_id and input_length."""

    Options: ClassVar[type[ReaderOptions]] = QwenBailianOptions

    def sniff(self, file: TraceFile) -> bool:
        """Recognise a JSON object with chat_id and input_length in the first line."""
        return '"chat_id"' in file.first_row and '"input_length"' in file.first_row

    def read(self, file: TraceFile, options: QwenBailianOptions) -> Trace:
        """Read all rows; chat ids are checked for duplicates, parents, types and turns kept as labels."""
        rows = JsonRows(file)
        tokens = rows.tokens("input_length")
        draft = Draft(
            file, "qwen-bailian", rows.times_ns("timestamp", NS_PER_S), tokens, rows.tokens("output_length")
        )
        draft.rows = rows
        draft.assume("timestamps in s; time 0 is the first arrival; open loop, prompts are whole")
        draft.request_ids = [str(row.get("chat_id", f"row {i}")) for i, row in enumerate(rows)]
        if any(IDS in row for row in rows):
            given, tolerant = options.block_tokens, options.tolerant
            blocks, size, _ = checked_blocks(draft, rows, IDS, id_lists(rows), tokens, 16, given, tolerant)
            adopt(draft, rows, IDS, blocks, size)
        keys = rows.keys()
        draft.labels = {
            key: np.array([str(row.get(key, "")) for row in rows], dtype=object)
            for key in ("chat_id", *KEPT)
            if key in keys
        }
        return finish(draft)
