"""OpenAI's batch output (vLLM's and SGLang's batch runs write it too): JSON lines, one answer each.

A batch has no arrivals. Answers with an error or a status other than 200 are left out and counted.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from simserve.core import Trace
from simserve.errors import TraceError
from simserve.workload.draft import Draft, check_cached, finish
from simserve.workload.json_table import JsonTable
from simserve.workload.jsonl import JsonRows
from simserve.workload.made_arrivals import ArrivalOptions
from simserve.workload.readers.base import READERS, ReaderOptions
from simserve.workload.source import TraceFile

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
