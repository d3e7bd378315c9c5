"""Vidur's request CSV, with Frontier's column for block ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from simserve.core import Trace
from simserve.errors import TraceError
from simserve.units import NS_PER_S
from simserve.workload.blocks import within
from simserve.workload.draft import Draft, adopt, checked_blocks, finish
from simserve.workload.formats.base import (
    READERS,
    WRITERS,
    ReaderOptions,
    column_losses,
    counts_agree,
    csv_bytes,
    decimal,
    id_texts,
)
from simserve.workload.source import TraceFile
from simserve.workload.synthetic.arrivals import CHOICES, ArrivalOptions
from simserve.workload.tables.csv import CsvTable
from simserve.workload.tables.json import JsonRows

# LLMServingSim's JSONL: nanosecond arrivals, flat requests and agentic sessions of sub-requests.
#
# A sub-request starts its predecessor's tool time after the predecessor ended; its prompt is whole. Token
# ids,
# if there are any, are not used. That program validates nothing on loading; everything is checked here.

SUB = "sub_requests"
USED = {"input_toks", "output_toks", "arrival_time_ns", "session_id", SUB, "tool_duration_ns"}


class LlmServingSimOptions(ReaderOptions):
    """The format has no options."""


@READERS.register("llmservingsim")
class LlmServingSimReader:
    """JSON lines with arrival_time_ns."""

    Options: ClassVar[type[ReaderOptions]] = LlmServingSimOptions

    def sniff(self, file: TraceFile) -> bool:
        """Recognise a JSON object with arrival_time_ns in the first line."""
        return '"arrival_time_ns"' in file.first_row

    def read(self, file: TraceFile, options: LlmServingSimOptions) -> Trace:
        """Read all rows; a row with sub_requests becomes the turns of a session."""
        rows = JsonRows(file)
        arrival_ns = rows.times_ns("arrival_time_ns", 1)
        turns, row_of = _turns(rows)
        each = JsonRows.of(file, [rows.lines[row] for row in row_of], turns)
        draft = Draft(
            file, "llmservingsim", arrival_ns[row_of], each.tokens("input_toks"), each.tokens("output_toks")
        )
        draft.rows = each
        draft.assume("arrivals in ns; time 0 is the first; token ids not used")
        if len(turns) > len(rows) or any(SUB in row for row in rows):
            place = within(np.bincount(row_of))
            tools_ns = each.times_ns(
                "tool_duration_ns", 1, [i for i, t in enumerate(turns) if "tool_duration_ns" in t]
            )
            draft.session = np.array(row_of, dtype=np.int64)
            draft.think_ns = np.where(place == 0, 0, np.roll(tools_ns, 1))
            draft.assume("closed loop: a sub-request starts the tool time after the one before it ended")
        unused = sorted((rows.keys() | each.keys()) - USED)
        if unused:
            draft.changes.append(f"fields not used: {', '.join(unused)}")
        return finish(draft)


def _turns(rows: JsonRows) -> tuple[list[dict[str, Any]], list[int]]:
    """Return all requests, sub-requests in place of their parents, and the row that each came from."""
    turns: list[dict[str, Any]] = []
    row_of: list[int] = []
    for i, row in enumerate(rows):
        parts = row.get(SUB, [row])
        if not isinstance(parts, list) or not parts or not all(isinstance(part, dict) for part in parts):
            rows.refuse(i, SUB, "a list of at least one request")
        turns += parts
        row_of += [i] * len(parts)
    return turns, row_of


# Vidur's request CSVs (also written by Frontier): seconds from the start, and two lengths.
#
# Vidur itself cuts prompts at its max_tokens option when it reads them; nothing is cut here. Frontier adds
# session_id and block_hash_ids (`11|22`); the sessions replay open loop, at their recorded arrivals.

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


@WRITERS.register("vidur")
class VidurWriter:
    """arrived_at (s, exact), num_prefill_tokens, num_decode_tokens, block_hash_ids if there are any."""

    suffixes: ClassVar[tuple[str, ...]] = (".csv",)

    def losses(self, trace: Trace) -> list[str]:
        """Lost: sessions, output limits, priorities; labels become columns."""
        lost = column_losses(trace, "labels", "block_ids")
        return lost if counts_agree(trace) else [*lost, "block ids that disagree with the lengths"]

    def encode(self, trace: Trace, path: Path) -> bytes:
        """Return the CSV."""
        columns = {
            "arrived_at": [decimal(ns, NS_PER_S) for ns in trace.arrival_ns.tolist()],
            "num_prefill_tokens": trace.prompt_tokens.tolist(),
            "num_decode_tokens": trace.output_tokens.tolist(),
        }
        if trace.block_ids is not None:
            columns["block_hash_ids"] = id_texts(trace)
        return csv_bytes(columns | {name: column.tolist() for name, column in trace.labels.items()})
