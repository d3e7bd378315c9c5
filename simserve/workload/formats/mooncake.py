"""Mooncake JSONL (FAST'25 release) and AIPerf's multi-turn dialect of it.

A row holds timestamp (ms), input_length, output_length and hash_ids, one per started block of 512 tokens.
With session_id, rows are the turns of a session: the first has a timestamp, later ones a delay after the
previous answer, and (AIPerf 0.13) give only the new tokens and their ids.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from simserve.core import Trace
from simserve.units import NS_PER_MS, NS_PER_S
from simserve.workload.blocks import Blocks, Int64, dense
from simserve.workload.draft import Draft, adopt, checked_blocks, finish
from simserve.workload.formats.base import (
    READERS,
    WRITERS,
    ReaderOptions,
    column_losses,
    counts_agree,
    decimal,
    has_partial_blocks,
    id_lists,
)
from simserve.workload.source import TraceFile
from simserve.workload.tables.json import JsonRows
from simserve.workload.transform import first_turns, whole_blocks, whole_prompts

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
    lists = row_id_lists(rows)
    given, tolerant = options.block_tokens, options.tolerant
    tokens = rows.tokens("input_length")
    blocks, size, partial = checked_blocks(draft, rows, IDS, lists, tokens, 512, given, tolerant)
    if session is not None and options.turns == "new":
        blocks = whole_blocks(blocks, session, draft.prompt_tokens, size, partial)
    adopt(draft, rows, IDS, blocks, size)


def row_id_lists(rows: JsonRows) -> list[list[Any]]:
    """Return the hash_ids of all rows; every row must have them."""
    lists = [row.get(IDS) for row in rows]
    for i, ids in enumerate(lists):
        if type(ids) is not list:
            rows.refuse(i, IDS, "a list of ids (in every row, once one row has it)")
        if any(type(value) is not int and type(value) is not str for value in ids):
            rows.refuse(i, IDS, "a list of whole numbers or strings")
    return lists  # type: ignore[return-value]


# Mooncake JSONL; sessions in AIPerf's dialect, where later turns give a delay and only their new tokens.


@WRITERS.register("mooncake")
class MooncakeWriter:
    """timestamp or delay (ms, exact decimals), input_length, output_length, hash_ids, session_id."""

    suffixes: ClassVar[tuple[str, ...]] = (".jsonl",)

    def losses(self, trace: Trace) -> list[str]:
        """Lost: output limits, priorities, labels, and sessions or contents that the dialect cannot say."""
        lost = column_losses(trace, "session", "block_ids")
        if not counts_agree(trace):
            lost.append("block ids that disagree with the lengths")
        if trace.session is None:
            return lost
        if (new_tokens(trace) < 0).any():
            return [*lost, "prompts that do not contain their history"]
        if trace.block_ids is not None and not _same_blocks(trace):
            lost.append("block ids of later turns other than the session's own content")
        return lost

    def encode(self, trace: Trace, path: Path) -> bytes:
        """Return the JSON lines."""
        first = first_turns(trace.session, len(trace))
        new = new_tokens(trace)
        ids = _new_blocks(trace, new)
        lines = []
        for row in range(len(trace)):
            fields = [] if trace.session is None else [f'"session_id": "{trace.session[row]}"']
            if first[row] or trace.think_ns is None:
                fields.append(f'"timestamp": {decimal(int(trace.arrival_ns[row]), NS_PER_MS)}')
            else:
                fields.append(f'"delay": {decimal(int(trace.think_ns[row]), NS_PER_MS)}')
            fields += [f'"input_length": {new[row]}', f'"output_length": {trace.output_tokens[row]}']
            if ids is not None:
                fields.append(f'"hash_ids": {ids[row]}')
            lines.append("{" + ", ".join(fields) + "}\n")
        return "".join(lines).encode()


def new_tokens(trace: Trace) -> Int64:
    """Return int64[n]: the prompt less the history of its session (negative if it does not contain that)."""
    if trace.session is None:
        return trace.prompt_tokens
    order = np.argsort(trace.session, kind="stable")
    history = np.zeros(len(trace), dtype=np.int64)
    later = order[1:][np.diff(trace.session[order]) == 0]
    before = order[:-1][np.diff(trace.session[order]) == 0]
    history[later] = trace.prompt_tokens[before] + trace.output_tokens[before]
    return trace.prompt_tokens - history


def _new_blocks(trace: Trace, new: Int64) -> list[list[int]] | None:
    """Return the ids to write: a first turn's own, and fresh ones for the new tokens of later turns."""
    if trace.block_ids is None:
        return None
    lists = id_lists(trace)
    fresh = int(trace.block_ids.max(initial=-1)) + 1
    for row in np.flatnonzero(~first_turns(trace.session, len(trace))).tolist():
        count = _count(int(new[row]), trace)
        lists[row] = list(range(fresh, fresh + count))
        fresh += count
    return lists


def _count(tokens: int, trace: Trace) -> int:
    return -(-tokens // trace.block_tokens) if has_partial_blocks(trace) else tokens // trace.block_tokens


def _same_blocks(trace: Trace) -> bool:
    """Whether a reader that rebuilds later turns from their session gets the same ids."""
    assert trace.session is not None
    assert trace.block_ids is not None
    assert trace.block_offsets is not None
    blocks = Blocks(trace.block_ids, trace.block_offsets)
    partial = has_partial_blocks(trace)
    rebuilt = whole_blocks(blocks, trace.session, trace.prompt_tokens, trace.block_tokens, partial)
    return len(rebuilt.ids) == len(blocks.ids) and bool((dense(rebuilt.ids) == dense(blocks.ids)).all())


# Qwen-Bailian usage traces: Mooncake's fields in other units (seconds, 16-token blocks), with chat ids.
#
# Every turn has a recorded stamp and its whole prompt, so turns replay open loop.

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
            blocks, size, _ = checked_blocks(
                draft, rows, IDS, row_id_lists(rows), tokens, 16, given, tolerant
            )
            adopt(draft, rows, IDS, blocks, size)
        keys = rows.keys()
        draft.labels = {
            key: np.array([str(row.get(key, "")) for row in rows], dtype=object)
            for key in ("chat_id", *KEPT)
            if key in keys
        }
        return finish(draft)
