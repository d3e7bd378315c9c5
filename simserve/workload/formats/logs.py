"""OpenAI's batch output (vLLM's and SGLang's batch runs write it too): JSON lines, one answer each.

A batch has no arrivals. Answers with an error or a status other than 200 are left out and counted.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from simserve.core import Trace
from simserve.errors import TraceError
from simserve.workload.draft import Draft, Kept, check_cached, finish
from simserve.workload.formats.base import READERS, ReaderOptions
from simserve.workload.formats.columns import first_names, table_of
from simserve.workload.source import TraceFile
from simserve.workload.synthetic.arrivals import ArrivalOptions
from simserve.workload.tables.columns import stamps_ns
from simserve.workload.tables.csv import CsvTable
from simserve.workload.tables.json import JsonRows, JsonTable

# BurstGPT's CSV (ChatGPT and GPT-4 logs): seconds from midnight of the first day, and two lengths.
#
# Later files add Session ID and Elapsed time, so columns are read by name. Rows with 0 response tokens
# failed.

BURSTGPT_COLUMNS = ("Timestamp", "Request tokens", "Response tokens")
BURSTGPT_LABELS = ("Model", "Session ID", "Log Type")


class BurstGptOptions(ReaderOptions):
    """The format has no options."""


@READERS.register("burstgpt")
class BurstGptReader:
    """CSV with Timestamp, Request tokens and Response tokens."""

    Options: ClassVar[type[ReaderOptions]] = BurstGptOptions

    def sniff(self, file: TraceFile) -> bool:
        """Recognise the header, in any column order."""
        return file.header >= set(BURSTGPT_COLUMNS)

    def read(self, file: TraceFile, options: BurstGptOptions) -> Trace:
        """Read the rows that were answered; raises `TraceError` if none was."""
        table = CsvTable(file)
        table.require(BURSTGPT_COLUMNS)
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
            labels={name: table.objects(name)[answered] for name in BURSTGPT_LABELS if name in table.names},
            rows=Kept(table, answered),
        )
        draft.assume("open loop: recorded arrivals in seconds; time 0 is the first; no prefix information")
        draft.change(table.rows - len(answered), "rows with 0 response tokens failed: left out")
        return finish(draft)


# LiteLLM's spend logs (CSV, JSON or Parquet): startTime, prompt_tokens and completion_tokens.
#
# Calls that failed, and answers from LiteLLM's own cache, reached no engine: left out and counted.

LITELLM_COLUMNS = ("startTime", "prompt_tokens", "completion_tokens")
CACHED = "metadata.usage_object.prompt_tokens_details.cached_tokens"
LITELLM_LABELS = ("model", "session_id", "call_type")


class LiteLlmOptions(ReaderOptions):
    """The format has no options."""


@READERS.register("litellm")
class LiteLlmReader:
    """A table with startTime, prompt_tokens, completion_tokens and spend."""

    Options: ClassVar[type[ReaderOptions]] = LiteLlmOptions

    def sniff(self, file: TraceFile) -> bool:
        """Recognise the columns, in any order."""
        return set(first_names(file)) >= {*LITELLM_COLUMNS, "spend"}

    def read(self, file: TraceFile, options: LiteLlmOptions) -> Trace:
        """Read the calls that an engine answered; raises `TraceError` if there is none."""
        table = table_of(file)
        table.require(LITELLM_COLUMNS)
        arrival_ns = stamps_ns(table, "startTime", table.objects("startTime").tolist())
        prompt, output = (table.tokens(name) for name in LITELLM_COLUMNS[1:])
        failed, cached = np.zeros(table.rows, dtype=bool), np.zeros(table.rows, dtype=bool)
        if "status" in table.names:
            failed = np.array([text.lower() == "failure" for text in table.objects("status")])
        if "cache_hit" in table.names:
            cached = ~failed & np.array([text.lower() == "true" for text in table.objects("cache_hit")])
        kept = np.flatnonzero(~failed & ~cached)
        if not len(kept):
            raise TraceError(f"{file.path}: every call failed or was answered from LiteLLM's cache")
        draft = Draft(file, "litellm", arrival_ns[kept], prompt[kept], output[kept], rows=Kept(table, kept))
        draft.labels = {name: table.objects(name)[kept] for name in LITELLM_LABELS if name in table.names}
        if CACHED in table.names:
            check_cached(draft, f"column {CACHED}", table.objects(CACHED)[kept])
        if "request_id" in table.names:
            draft.request_ids = table.objects("request_id")[kept].tolist()
        draft.assume("open loop: recorded startTime; no prefix information")
        draft.change(int(failed.sum()), "calls failed: left out")
        draft.change(int(cached.sum()), "calls were answered from LiteLLM's cache: left out")
        return finish(draft)


USAGE = "response.body.usage."
LENGTHS = (("prompt_tokens", "completion_tokens"), ("input_tokens", "output_tokens"))
"""Names of the two lengths in answers of chat completions and in those of the Responses API."""


@READERS.register("openai_batch")
class OpenAiBatchReader:
    """JSON lines with custom_id and response."""

    Options: ClassVar[type[ReaderOptions]] = ArrivalOptions

    def sniff(self, file: TraceFile) -> bool:
        """Recognise an output row (an input row has a body, and no response)."""
        return '"custom_id"' in file.first_row and '"response"' in file.first_row

    def read(self, file: TraceFile, options: ArrivalOptions) -> Trace:
        """Read the answers; raises `TraceError` if none was a success."""
        found = JsonRows(file)
        for i, row in enumerate(found):
            if not row.get("response") and not row.get("error"):
                found.refuse(i, "response", "an answer (or an error beside it)")
        good = [i for i, row in enumerate(found) if _answered(row)]
        if not good:
            raise TraceError(f"{file.path}: no answer has status_code 200 and no error: every request failed")
        rows = JsonRows.of(
            file, [found.lines[i] for i in good], [JsonTable.flat(found.rows[i]) for i in good]
        )
        names = next((pair for pair in LENGTHS if USAGE + pair[0] in rows.rows[0]), LENGTHS[0])
        prompt, output = (rows.tokens(USAGE + name) for name in names)
        draft = Draft(file, "openai_batch", np.zeros(len(rows), dtype=np.int64), prompt, output, rows=rows)
        if options.given:
            draft.arrival_ns, how = options.made_ns(len(rows))
            draft.assume(how)
        else:
            draft.assume("a batch has no recorded arrivals: all requests arrive at time 0")
        for name in (f"{pair[0]}_details.cached_tokens" for pair in LENGTHS):
            check_cached(draft, f"field {USAGE}{name}", (row.get(USAGE + name) for row in rows))
        draft.assume("no prefix information")
        draft.request_ids = [str(row.get("custom_id", f"row {i}")) for i, row in enumerate(rows)]
        draft.change(len(found) - len(rows), "answers have an error or a status other than 200: left out")
        return finish(draft)


def _answered(row: dict[str, Any]) -> bool:
    response = row.get("response")
    return not row.get("error") and isinstance(response, dict) and response.get("status_code", 200) == 200
