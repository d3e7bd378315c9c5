"""Which column is which, by the words that people use; where two may be meant, the user is asked."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from simserve.errors import TraceError, nearest
from simserve.workload.source import TraceFile, shown
from simserve.workload.tables.csv import MAX_NS, int64_values

# Calendar stamps as nanoseconds since 1970, to nine decimals; with a time zone in all rows or in none.

Int64 = NDArray[np.int64]
_DAY = re.compile(r"\d{4}-\d\d-\d\d([T ]|$)")
_ZONE = re.compile(r"(Z|[+-]\d\d(:?\d\d)?)$")


class _Rows(Protocol):
    file: TraceFile

    def fail(self, row: int, message: str) -> NoReturn: ...


def is_stamp(text: str) -> bool:
    """Return whether a value looks like a calendar stamp."""
    return bool(_DAY.match(text.strip()))


def stamps_ns(table: _Rows, name: str, texts: list[str]) -> Int64:
    """Return the stamps; ` UTC` at the end is a zone. Raises `TraceError` about the first that is none."""
    import pyarrow as pa

    if any(text.endswith("UTC") for text in texts):
        texts = [re.sub(r"\s*UTC$", "Z", text) for text in texts]
    zoned = bool(_ZONE.search(texts[0][10:]))
    stamp = pa.timestamp("ns", "UTC") if zoned else pa.timestamp("ns")
    try:
        values = int64_values(pa.array(texts, pa.string()).cast(stamp).cast(pa.int64()))
    except pa.ArrowInvalid:
        for row, text in enumerate(texts):
            if _ok(text, stamp):
                continue
            if _ok(text, pa.timestamp("ns") if zoned else pa.timestamp("ns", "UTC")):
                has, lacks = ("a", "none") if zoned else ("no", "one")
                table.fail(
                    row,
                    f"column {name} is {shown(text)}; the first row, {shown(texts[0])}, has {has} time zone, "
                    f"this has {lacks}: allowed: one way of writing",
                )
            found = f"is {shown(text)}" if text else "is missing"
            table.fail(
                row,
                f"column {name} {found}; allowed: a stamp such as 2023-11-16 18:15:46.6805900",
            )
        raise
    if values.min() < 0 or values.max() > MAX_NS:
        row = int(np.argmax((values < 0) | (values > MAX_NS)))
        table.fail(row, f"column {name} is {shown(texts[row])}; allowed: stamps from 1970 to 2116")
    return values


def _ok(text: str, stamp: object) -> bool:
    import pyarrow as pa

    try:
        pa.array([text]).cast(stamp)  # type: ignore[arg-type]
    except pa.ArrowInvalid:
        return False
    return True


_TIMES = """
arrival arrival_time arrival_timestamp arrived_at arrival_at | timestamp time_stamp time ts datetime date_time
start_time start_timestamp started_at request_time request_timestamp request_start request_start_time
request_received requested_at received_at created_at created submitted_at submit_time sent_at send_time
event_time epoch unix_time start_time_unix time_unix
"""
SYNONYMS: dict[str, str] = {
    "arrival": _TIMES,
    "prompt_tokens": """
    prompt_tokens | input_tokens prompt_token_count input_token_count num_prompt_tokens n_prompt_tokens
    num_input_tokens n_input_tokens context_tokens prefill_tokens num_prefill_tokens request_tokens
    tokens_prompt tokens_in in_tokens prompt_toks input_toks input_len
    prompt_len input_length input_sequence_length isl
    """,
    "output_tokens": """
    output_tokens | completion_tokens generated_tokens generation_tokens response_tokens decode_tokens
    num_decode_tokens output_token_count completion_token_count candidates_token_count num_output_tokens
    n_output_tokens num_completion_tokens n_completion_tokens num_generated_tokens n_generated_tokens
    tokens_completion tokens_generated tokens_out out_tokens output_toks completion_toks output_len
    completion_len output_length output_sequence_length osl
    """,
    "cached_tokens": """
    cached_tokens | cached_input_tokens cached_prompt_tokens cache_hit_tokens prompt_cache_hit_tokens
    cache_read_tokens prompt_tokens_details_cached_tokens input_tokens_details_cached_tokens
    """,
    "session": "session_id session | conversation_id conversation chat_id thread_id dialog_id dialogue_id",
    "class": "class request_class | slo_class traffic_class request_type log_type category tier application",
    "model": "model | model_name model_id llm_model gen_ai_request_model",
    "max_tokens": "max_tokens | max_output_tokens max_completion_tokens max_new_tokens",
    "priority": "priority",
    "request_id": "request_id | id req_id uuid",
}
"""Role to the words for it; those before the bar are the role's own name and win over the others."""
SEPARATE = ("cache_read_input_tokens", "cache_creation_input_tokens")
"""Anthropic's counts, which its input_tokens do not include."""
NEEDED = ("arrival", "prompt_tokens", "output_tokens")
UNIT_WORDS = {
    "s": "s sec secs second seconds",
    "ms": "ms msec millis milliseconds",
    "us": "us usec micros microseconds",
    "ns": "ns nsec nano nanos nanoseconds",
}
_UNIT_OF = {word: unit for unit, words in UNIT_WORDS.items() for word in words.split()}
_PREFIXES = (
    "response_body_usage_",
    "response_usage_",
    "gen_ai_usage_",
    "usage_",
    "attributes_",
    "request_log_",
)


def normal(name: str) -> str:
    """Return a name in lower case with single underscores: `usage.promptTokens` -> `prompt_tokens`."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.strip())
    words = re.sub(r"[^a-z0-9]+", "_", words.lower()).strip("_")
    for prefix in _PREFIXES:
        words = words.removeprefix(prefix)
    return words


def unit_of(name: str) -> str | None:
    """Return the unit (s, ms, us, ns) that a name ends in, if any."""
    return _UNIT_OF.get(normal(name).rpartition("_")[2])


def recognised(names: Iterable[str]) -> dict[str, list[str]]:
    """Return for each role the columns that may be meant: one if it is clear, none if there is none."""
    found: dict[str, list[str]] = {}
    columns = list(names)
    for role, words in SYNONYMS.items():
        for tier in words.split("|"):
            allowed = set(tier.split())
            hits = [name for name in columns if _bare(name, role) in allowed]
            if hits:
                found[role] = hits
                break
    return found


def mapping_of(path: object, names: list[str], given: Mapping[str, str]) -> dict[str, str]:
    """Return role to column: what the user says, else what the names say.

    Raises `TraceError` for an unknown role or column, for two columns that may be the same role, and for a
    missing one of prompt_tokens and output_tokens.
    """
    for role, column in given.items():
        if role not in SYNONYMS:
            raise TraceError(
                f"{path}: columns: unknown {role!r}{nearest(role, SYNONYMS)}; allowed: {', '.join(SYNONYMS)}"
            )
        if column not in names:
            raise TraceError(
                f"{path}: columns: no column {column!r}{nearest(column, names)}; has: {', '.join(names)}"
            )
    twice = [column for column in given.values() if list(given.values()).count(column) > 1]
    if twice:
        raise TraceError(f"{path}: columns: {twice[0]!r} is given for two roles; a column has one")
    left = [name for name in names if name not in given.values()]
    chosen = dict(given)
    for role, hits in recognised(left).items():
        if role in given:
            continue
        if len(hits) > 1:
            raise TraceError(
                f"{path}: {role} may be column {' or '.join(hits)}: say which, columns: "
                f"{{{role}: {hits[0]}}} (--columns {role}={hits[0]})"
            )
        chosen[role] = hits[0]
    for role in NEEDED[1:]:
        if role not in chosen:
            near = _nearest(role, [name for name in left if name not in chosen.values()])
            raise TraceError(
                f"{path}: no column is known as {role}{near}; has: {', '.join(names)}; say which, "
                f"columns: {{{role}: NAME}} (--columns {role}=NAME)"
            )
    return chosen


def _nearest(role: str, names: list[str]) -> str:
    """Return ` (did you mean ...)` for the column whose name is nearly one of a role's words."""
    normals = {normal(name): name for name in names}
    for word in SYNONYMS[role].replace("|", " ").split():
        if close := difflib.get_close_matches(word, normals, n=1, cutoff=0.85):
            return f" (did you mean {normals[close[0]]!r}?)"
    return ""


def _bare(name: str, role: str) -> str:
    words = normal(name)
    base, _, last = words.rpartition("_")
    return base if role == "arrival" and last in _UNIT_OF else words
