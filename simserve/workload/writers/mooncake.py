"""Mooncake JSONL; sessions in AIPerf's dialect, where later turns give a delay and only their new tokens."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np

from simserve.core import Trace
from simserve.units import NS_PER_MS
from simserve.workload.blocks import Blocks
from simserve.workload.csv_text import counts_agree, has_partial_blocks, id_lists
from simserve.workload.select import Int64, dense
from simserve.workload.sessions import first_turns, whole_blocks
from simserve.workload.writers.base import WRITERS, column_losses, decimal


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
