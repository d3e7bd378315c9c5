"""LLMServingSim's JSONL: nanosecond arrivals, flat requests and agentic sessions of sub-requests.

A sub-request starts its predecessor's tool time after the predecessor ended; its prompt is whole. Token ids,
if there are any, are not used. That program validates nothing on loading; everything is checked here.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from simserve.core import Trace
from simserve.workload.draft import Draft, finish
from simserve.workload.jsonl import JsonRows
from simserve.workload.readers.base import READERS, ReaderOptions
from simserve.workload.select import within
from simserve.workload.source import TraceFile

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
