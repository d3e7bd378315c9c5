"""OpenTelemetry traces as OTLP JSON (the collector's file exporter): spans with gen_ai.usage attributes.

The names are those of OpenTelemetry's semantic conventions for generative AI, and their older ones
(prompt_tokens, completion_tokens). Cached tokens are part of input_tokens there.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from simserve.core import Trace
from simserve.errors import TraceError
from simserve.workload.draft import Draft, check_cached, finish
from simserve.workload.formats.base import READERS, ReaderOptions
from simserve.workload.source import TraceFile, shown
from simserve.workload.tables.columns import stamps_ns
from simserve.workload.tables.csv import MAX_NS, MAX_TOKENS
from simserve.workload.tables.json import JsonRows, JsonTable

# Langfuse's observations (API answer or export): startTime, and usageDetails or the older usage.
#
# A key of usageDetails with `input` in its name counts prompt tokens, one with `output` answer tokens:
# Langfuse
# keeps cached tokens (input_cached_tokens, cache_read_input_tokens) apart from input.


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
            rows.fail(row, f"usage {key} is {shown(value)}; allowed: a whole number of tokens from 0")
    for word in ("input", "output"):
        if not any(word in key for key in counts):
            rows.fail(
                row,
                f"usage has no {word}, or null: {shown(usage)}; allowed: a whole number from 0",
            )
    if usage.get("unit") not in (None, "TOKENS"):
        rows.fail(row, f"usage unit is {shown(usage['unit'])}; allowed: TOKENS")
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
            "tokens; allowed: a part of them",
        )
    return plain


USAGE = "gen_ai.usage."
CACHED = (f"{USAGE}cache_read.input_tokens", f"{USAGE}cache_read_input_tokens")
"""Cached tokens, which are part of the input tokens."""
OPERATIONS = ("chat", "text_completion", "generate_content")
"""Values of gen_ai.operation.name that are one request to a model; agents add up those of others."""
START = "startTimeUnixNano"


class OtlpOptions(ReaderOptions):
    """The format has no options."""


@READERS.register("otlp")
class OtlpReader:
    """JSON with resourceSpans."""

    Options: ClassVar[type[ReaderOptions]] = OtlpOptions

    def sniff(self, file: TraceFile) -> bool:
        """Recognise resourceSpans in the first object."""
        return '"resourceSpans"' in file.first_row

    def read(self, file: TraceFile, options: OtlpOptions) -> Trace:
        """Read the spans that are requests; raises `TraceError` if none is."""
        rows = JsonRows(file)
        spans = [
            (i, span)
            for i, row in enumerate(rows)
            for resource in _list(rows, i, row, "resourceSpans")
            for scope in _list(rows, i, resource, "scopeSpans")
            for span in _list(rows, i, scope, "spans")
        ]
        attributes = [_attributes(rows, i, span) for i, span in spans]
        counted = [k for k, found in enumerate(attributes) if any(name.startswith(USAGE) for name in found)]
        requests = [
            k
            for k in counted
            if attributes[k].get("gen_ai.operation.name", "chat") in OPERATIONS
            and not _failed(spans[k][1], attributes[k])
        ]
        parents = {spans[k][1].get("parentSpanId") for k in requests} - {None, ""}
        kept = [k for k in requests if spans[k][1].get("spanId") not in parents]
        if not kept:
            raise TraceError(
                f"{file.path}: none of {len(spans):,} spans is a request with {USAGE}input_tokens and "
                f"{USAGE}output_tokens"
            )
        at = JsonRows.of(file, [rows.lines[spans[k][0]] for k in kept], [spans[k][1] for k in kept])
        found = [attributes[k] for k in kept]
        draft = Draft(
            file,
            "otlp",
            np.array([_whole(at, i, span, (START,), MAX_NS) for i, span in enumerate(at)], dtype=np.int64),
            _tokens(at, found, ("input_tokens", "prompt_tokens")),
            _tokens(at, found, ("output_tokens", "completion_tokens")),
            rows=at,
        )
        draft.assume(f"open loop: recorded {START}; cached tokens are in the prompts; no prefix information")
        for name in CACHED:
            check_cached(draft, f"attribute {name}", (one.get(name) for one in found))
        models = [str(one.get("gen_ai.request.model", "")) for one in found]
        draft.labels["model"] = np.array(models, dtype=object)
        draft.change(sum("resourceSpans" not in row for row in rows), "rows hold no resourceSpans: left out")
        draft.change(len(spans) - len(counted), "spans without token counts: no requests, left out")
        draft.change(
            len(counted) - len(requests), "spans with token counts failed or are no single request: left out"
        )
        draft.change(len(requests) - len(kept), "spans enclose the request that they count: left out")
        return finish(draft)


def _list(rows: JsonRows, row: int, holder: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """Return a list of objects; empty if it is missing."""
    found = holder.get(key, [])
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        rows.fail(row, f"{key} is {shown(found)}; allowed: a list of objects")
    return found


def _attributes(rows: JsonRows, row: int, span: dict[str, Any]) -> dict[str, Any]:
    """Return a span's attributes by name: `{"intValue": "12"}` as what it holds."""
    found = {}
    for one in _list(rows, row, span, "attributes"):
        value = one.get("value")
        found[str(one.get("key"))] = next(iter(value.values()), None) if isinstance(value, dict) else value
    return found


def _failed(span: dict[str, Any], attributes: dict[str, Any]) -> bool:
    status = span.get("status")
    code = status.get("code") if isinstance(status, dict) else None
    return code in (2, "STATUS_CODE_ERROR") or "error.type" in attributes


def _tokens(rows: JsonRows, found: list[dict[str, Any]], names: tuple[str, ...]) -> np.ndarray:
    keys = tuple(USAGE + name for name in names)
    return np.array([_whole(rows, i, one, keys, MAX_TOKENS) for i, one in enumerate(found)], dtype=np.int64)


def _whole(rows: JsonRows, row: int, holder: dict[str, Any], keys: tuple[str, ...], most: int) -> int:
    """Return a whole number, which OTLP may write as a string."""
    key = next((key for key in keys if key in holder), keys[0])
    value = holder.get(key)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        value = int(value)
    if type(value) is not int or not 0 <= value <= most:
        found = "is missing" if key not in holder else f"is {shown(value)}"
        rows.fail(
            row,
            f"span {shown(rows.rows[row].get('spanId'))}: {key} {found}; allowed: a whole number from 0",
        )
    return value
