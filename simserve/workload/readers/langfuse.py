"""Langfuse's observations (API answer or export): startTime, and usageDetails or the older usage.

A key of usageDetails with `input` in its name counts prompt tokens, one with `output` answer tokens: Langfuse
keeps cached tokens (input_cached_tokens, cache_read_input_tokens) apart from input.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from simserve.core import Trace
from simserve.errors import TraceError
from simserve.workload.csv_table import MAX_TOKENS
from simserve.workload.draft import Draft, finish
from simserve.workload.json_table import JsonTable
from simserve.workload.jsonl import JsonRows
from simserve.workload.readers.base import READERS, ReaderOptions
from simserve.workload.source import TraceFile, shown
from simserve.workload.stamps import stamps_ns


class LangfuseOptions(ReaderOptions):
    """The format has no options."""


@READERS.register("langfuse")
class LangfuseReader:
    """JSON with startTime and usageDetails or usage."""

    Options: ClassVar[type[ReaderOptions]] = LangfuseOptions

    def sniff(self, file: TraceFile) -> bool:
        """Recognise an observation of any type by its first row."""
        first = file.first_row
        return '"startTime"' in first and ('"usageDetails"' in first or '"traceId"' in first)

    def read(self, file: TraceFile, options: LangfuseOptions) -> Trace:
        """Read the generations that have token counts; raises `TraceError` if none has."""
        found = JsonRows(file)
        models = [i for i, row in enumerate(found) if row.get("type", "GENERATION") == "GENERATION"]
        good = [i for i in models if found.rows[i].get("level") != "ERROR" and _usage(found.rows[i])]
        if not good:
            raise TraceError(f"{file.path}: no observation is a generation with usageDetails or usage")
        rows = JsonRows.of(file, [found.lines[i] for i in good], [found.rows[i] for i in good])
        counts = [_counts(rows, i, _usage(row)) for i, row in enumerate(rows)]
        prompt, output = (np.array(column, dtype=np.int64) for column in zip(*counts, strict=True))
        table = JsonTable.of(rows)
        table.require(("startTime",))
        arrival_ns = stamps_ns(table, "startTime", table.objects("startTime").tolist())
        draft = Draft(file, "langfuse", arrival_ns, prompt, output, rows=rows)
        draft.assume(
            "open loop: recorded startTime; counts such as input_cached_tokens come on top of input, unless "
            "the total says otherwise; no prefix information"
        )
        if "model" in table.names:
            draft.labels["model"] = table.objects("model")
        if "id" in table.names:
            draft.request_ids = table.objects("id").tolist()
        draft.change(len(found) - len(models), "observations are no generations (spans, events): left out")
        draft.change(len(models) - len(good), "generations failed or have no token counts: left out")
        return finish(draft)


def _usage(row: dict[str, Any]) -> dict[str, Any]:
    for key in ("usageDetails", "usage"):
        usage = row.get(key)
        if isinstance(usage, dict) and any(usage.get(name) is not None for name in ("input", "output")):
            return usage
    return {}


def _counts(rows: JsonRows, row: int, usage: dict[str, Any]) -> tuple[int, int]:
    """Return prompt and answer tokens, which must add up to the total if there is one."""
    counts = {
        key: value
        for key, value in usage.items()
        if value is not None and ("input" in key or "output" in key) and not key.lower().endswith("cost")
    }
    for key, value in counts.items():
        if type(value) is not int or not 0 <= value <= MAX_TOKENS:
            rows.fail(row, f"usage {key} is {shown(value)}; allowed is a whole number of tokens from 0")
    for word in ("input", "output"):
        if not any(word in key for key in counts):
            rows.fail(
                row,
                f"usage has no {word}, or null: {shown(usage)}; allowed is a whole number from 0",
            )
    if usage.get("unit") not in (None, "TOKENS"):
        rows.fail(row, f"usage unit is {shown(usage['unit'])}; allowed is TOKENS")
    every = (
        sum(n for key, n in counts.items() if "input" in key),
        sum(n for key, n in counts.items() if "output" in key and "input" not in key),
    )
    plain = (counts.get("input", 0), counts.get("output", 0))
    total = usage.get("total") or sum(every)
    if total not in (sum(every), sum(plain)):
        rows.fail(row, f"usage: input {every[0]} and output {every[1]} do not add up to total {shown(total)}")
    if total == sum(every):
        return every
    if every[0] > 2 * plain[0]:  # the details are part of input and output
        rows.fail(
            row,
            f"usage: {every[0] - plain[0]:,} of {plain[0]:,} input tokens are in details such as cached "
            "tokens; allowed is a part of them",
        )
    return plain
