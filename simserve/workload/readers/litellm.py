"""LiteLLM's spend logs (CSV, JSON or Parquet): startTime, prompt_tokens and completion_tokens.

Calls that failed, and answers from LiteLLM's own cache, reached no engine: left out and counted.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from simserve.core import Trace
from simserve.errors import TraceError
from simserve.workload.draft import Draft, Kept, check_cached, finish
from simserve.workload.readers.base import READERS, ReaderOptions
from simserve.workload.readers.columns import first_names, table_of
from simserve.workload.source import TraceFile
from simserve.workload.stamps import stamps_ns

COLUMNS = ("startTime", "prompt_tokens", "completion_tokens")
CACHED = "metadata.usage_object.prompt_tokens_details.cached_tokens"
LABELS = ("model", "session_id", "call_type")


class LiteLlmOptions(ReaderOptions):
    """The format has no options."""


@READERS.register("litellm")
class LiteLlmReader:
    """A table with startTime, prompt_tokens, completion_tokens and spend."""

    Options: ClassVar[type[ReaderOptions]] = LiteLlmOptions

    def sniff(self, file: TraceFile) -> bool:
        """Recognise the columns, in any order."""
        return set(first_names(file)) >= {*COLUMNS, "spend"}

    def read(self, file: TraceFile, options: LiteLlmOptions) -> Trace:
        """Read the calls that an engine answered; raises `TraceError` if there is none."""
        table = table_of(file)
        table.require(COLUMNS)
        arrival_ns = stamps_ns(table, "startTime", table.objects("startTime").tolist())
        prompt, output = (table.tokens(name) for name in COLUMNS[1:])
        failed, cached = np.zeros(table.rows, dtype=bool), np.zeros(table.rows, dtype=bool)
        if "status" in table.names:
            failed = np.array([text.lower() == "failure" for text in table.objects("status")])
        if "cache_hit" in table.names:
            cached = ~failed & np.array([text.lower() == "true" for text in table.objects("cache_hit")])
        kept = np.flatnonzero(~failed & ~cached)
        if not len(kept):
            raise TraceError(f"{file.path}: every call failed or was answered from LiteLLM's cache")
        draft = Draft(file, "litellm", arrival_ns[kept], prompt[kept], output[kept], rows=Kept(table, kept))
        draft.labels = {name: table.objects(name)[kept] for name in LABELS if name in table.names}
        if CACHED in table.names:
            check_cached(draft, f"column {CACHED}", table.objects(CACHED)[kept])
        if "request_id" in table.names:
            draft.request_ids = table.objects("request_id")[kept].tolist()
        draft.assume("open loop: recorded startTime; no prefix information")
        draft.change(int(failed.sum()), "calls failed: left out")
        draft.change(int(cached.sum()), "calls were answered from LiteLLM's cache: left out")
        return finish(draft)
