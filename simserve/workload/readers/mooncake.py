"""Mooncake JSONL (FAST'25 release) and AIPerf's multi-turn dialect of it.

A row holds timestamp (ms), input_length, output_length and hash_ids, one per started block of 512 tokens.
With session_id, rows are the turns of a session: the first has a timestamp, later ones a delay after the
previous answer, and (AIPerf 0.13) give only the new tokens and their ids.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from simserve.core import Trace
from simserve.units import NS_PER_MS, NS_PER_S
from simserve.workload.block_columns import adopt, checked_blocks
from simserve.workload.draft import Draft, finish
from simserve.workload.jsonl import JsonRows
from simserve.workload.readers.base import READERS, ReaderOptions
from simserve.workload.select import Int64
from simserve.workload.sessions import first_turns, whole_blocks, whole_prompts
from simserve.workload.source import TraceFile

USED = {"timestamp", "delay", "input_length", "output_length", "hash_ids", "session_id"}
IDS = "hash_ids"


class MooncakeOptions(ReaderOptions):
    """What the file itself does not say."""

    unit: Literal["ms", "s"] = Field(
        default="ms", description="Unit of timestamp and delay; guidellm writes s."
    )
    block_tokens: int | None = Field(
        default=None,
        gt=0,
        description="Tokens per hash id; by default 512, or what every row of the file agrees on.",
    )
    tolerant: bool = Field(
        default=False,
        description="Accept hash_ids that disagree with the lengths: surplus ids are cut, missing ones count "
        "as content that nobody shares. Both are counted.",
    )
    turns: Literal["new", "whole"] = Field(
        default="new",
        description="What a later turn's input_length holds: its new tokens (AIPerf) or the whole prompt.",
    )


@READERS.register("mooncake")
class MooncakeReader:
    """JSON lines with input_length."""

    Options: ClassVar[type[ReaderOptions]] = MooncakeOptions

    def sniff(self, file: TraceFile) -> bool:
        """Recognise a JSON object with input_length in the first line, but not Qwen-Bailian's."""
        return '"input_length"' in file.first_row and '"chat_id"' not in file.first_row

    def read(self, file: TraceFile, options: MooncakeOptions) -> Trace:
        """Read all rows; later turns get their history, if the file leaves it out."""
        rows = JsonRows(file)
        draft = Draft(
            file,
            "mooncake",
            arrival_ns=np.zeros(len(rows), dtype=np.int64),
            prompt_tokens=rows.tokens("input_length"),
            output_tokens=rows.tokens("output_length"),
            rows=rows,
        )
        draft.assume(f"timestamps in {options.unit}; time 0 is the first arrival")
        session = _session_numbers(rows)
        if session is not None and options.turns == "new":
            draft.assume("later turns give only new tokens: earlier prompts and answers are added to them")
            draft.prompt_tokens = whole_prompts(session, draft.prompt_tokens, draft.output_tokens)
        _add_blocks(draft, rows, options, session)
        _times(draft, rows, session, NS_PER_MS if options.unit == "ms" else NS_PER_S)
        unused = sorted(rows.keys() - USED)
        if unused:
            draft.changes.append(f"fields not used: {', '.join(unused)}")
        return finish(draft)


def _session_numbers(rows: JsonRows) -> Int64 | None:
    """Number the sessions (a row without session_id is one of its own); None if there are none."""
    if not any("session_id" in row for row in rows):
        return None
    codes: dict[Any, int] = {}
    numbers = []
    for i, row in enumerate(rows):
        key = row.get("session_id")
        if key is not None and type(key) not in (str, int):
            rows.refuse(i, "session_id", "a string or a whole number")
        numbers.append(codes.setdefault(("alone", i) if key is None else key, len(codes)))
    return np.array(numbers, dtype=np.int64)


def _times(draft: Draft, rows: JsonRows, session: Int64 | None, unit_ns: int) -> None:
    if session is None or not any("delay" in row for row in rows):
        draft.arrival_ns = rows.times_ns("timestamp", unit_ns)
        draft.assume("open loop: recorded arrivals")
        if session is not None:
            names = [str(row.get("session_id", "")) for row in rows]
            draft.labels["session_id"] = np.array(names, dtype=object)
            draft.assume("turns of a session keep their recorded timestamps (none has a delay)")
        return
    first = first_turns(session, len(rows))
    draft.arrival_ns = rows.times_ns("timestamp", unit_ns, np.flatnonzero(first).tolist())
    draft.think_ns = rows.times_ns("delay", unit_ns, np.flatnonzero(~first).tolist())
    draft.session = session
    draft.assume(
        f"closed loop, {first.sum():,} sessions: a later turn starts its delay after the last answer"
    )


def _add_blocks(draft: Draft, rows: JsonRows, options: MooncakeOptions, session: Int64 | None) -> None:
    """Read the ids; the draft's prompts must be whole by now."""
    if not any(IDS in row for row in rows):
        draft.assume(f"no {IDS}: no prefix information")
        return
    lists = id_lists(rows)
    given, tolerant = options.block_tokens, options.tolerant
    tokens = rows.tokens("input_length")
    blocks, size, partial = checked_blocks(draft, rows, IDS, lists, tokens, 512, given, tolerant)
    if session is not None and options.turns == "new":
        blocks = whole_blocks(blocks, session, draft.prompt_tokens, size, partial)
    adopt(draft, rows, IDS, blocks, size)


def id_lists(rows: JsonRows) -> list[list[Any]]:
    """Return the hash_ids of all rows; every row must have them."""
    lists = [row.get(IDS) for row in rows]
    for i, ids in enumerate(lists):
        if type(ids) is not list:
            rows.refuse(i, IDS, "a list of ids (in every row, once one row has it)")
        if any(type(value) is not int and type(value) is not str for value in ids):
            rows.refuse(i, IDS, "a list of whole numbers or strings")
    return lists  # type: ignore[return-value]
