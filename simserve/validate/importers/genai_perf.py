"""GenAI-Perf's and perf_analyzer's profile_export.json: experiments, their requests, a stamp per response.

Stamps are nanoseconds of one clock. The file counts no tokens: a response with content is taken for one, and
the prompt's length is not known (0). Responses without content are a role, or an end mark.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from simserve.validate.importers.base import IMPORTERS
from simserve.validate.importers.columns import Row, columns
from simserve.validate.importers.json_file import JsonFile, Record
from simserve.validate.importers.load_test import LoadTest
from simserve.validate.importers.sanity import checked

_NOTES = (
    "each response with content counts as one token; the file does not count them",
    "the file does not tell the prompts' lengths",
)


@IMPORTERS.register("genai-perf")
class GenaiPerf:
    """One JSON with a list of experiments."""

    def sniff(self, file: JsonFile) -> bool:
        """Recognise the experiments."""
        return isinstance(file.first.get("experiments"), list) and "service_kind" in file.first

    def read(self, file: JsonFile) -> list[LoadTest]:
        """Return one load test per experiment."""
        found = file.first.list("experiments")
        if not found:
            file.first.fail("no experiment in the file")
        return [_experiment(Record(f"{file.name}: experiment {i}", one)) for i, one in enumerate(found, 1)]


def _experiment(record: Record) -> LoadTest:
    requests = record.list("requests")
    found = [_row(Record(f"{record.place}: request {i}", one)) for i, one in enumerate(requests)]
    rows = [row for row in found if row is not None]
    load = record.part("experiment")
    note = f"load: {load.get('mode')} {load.get('value')}"
    return checked(
        LoadTest(
            record.place,
            "genai-perf",
            columns(rows, gaps_known=True),
            sent=len(requests),
            failed=len(found) - len(rows),
            notes=(*_NOTES, note),
        )
    )


def _row(request: Record) -> Row | None:
    """Return a request, None if it got no token or an error."""
    start_ns = request.count("timestamp")
    stamps, outputs = request.list("response_timestamps"), request.get("response_outputs") or []
    if outputs and len(outputs) != len(stamps):
        request.fail(f"{len(stamps)} response_timestamps, {len(outputs)} response_outputs")
    if request.get("success") is False:
        return None
    tokens = [at for i, at in enumerate(stamps) if not outputs or _has_content(outputs[i])]
    if not tokens:
        return None
    gaps = [later - earlier for earlier, later in pairwise(tokens)]
    return Row(start_ns, 0, len(tokens), tokens[0] - start_ns, tokens[-1] - start_ns, gaps)


def _has_content(output: dict[str, Any]) -> bool:
    """Return whether a response carries text; what cannot be read is taken to."""
    if "text_output" in output:
        return bool(output["text_output"])
    text = str(output.get("response", "")).strip().removeprefix("data:").strip()
    if text in ("", "[DONE]"):
        return False
    try:
        choices = json.loads(text).get("choices") or []
    except (json.JSONDecodeError, AttributeError):
        return True
    if not choices:
        return False
    delta = choices[0].get("delta", choices[0])
    return bool(delta.get("content") or delta.get("text") or delta.get("reasoning_content"))
