"""Own traffic: any CSV, Parquet or JSON lines whose columns are known by their names (see `column_names`).

Times are seconds, ms, us or ns from any start, since 1970, or calendar stamps; a number whose unit neither
its name nor its size tells is asked about. What was recognised stands in the assumptions.
"""

from __future__ import annotations

import json
import re
from decimal import Decimal, InvalidOperation
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from simserve.core import Trace
from simserve.errors import TraceError
from simserve.units import NS_PER_S
from simserve.workload.blocks import Int64
from simserve.workload.draft import Draft, check_cached, finish
from simserve.workload.formats.base import READERS, ReaderOptions
from simserve.workload.formats.plain import Table
from simserve.workload.source import TraceFile, shown
from simserve.workload.synthetic.arrivals import CHOICES, ArrivalOptions
from simserve.workload.tables.columns import (
    NEEDED,
    SEPARATE,
    is_stamp,
    mapping_of,
    normal,
    recognised,
    stamps_ns,
    unit_of,
)
from simserve.workload.tables.csv import EPOCH_S, UNITS_NS, CsvTable
from simserve.workload.tables.json import JsonTable
from simserve.workload.tables.parquet import ParquetTable

LABELS = ("cached_tokens", "session", "class", "model", "request_id")
_WHOLE = re.compile(r"(\d+)\.0+")


class ColumnsOptions(ArrivalOptions):
    """What the names do not say."""

    columns: dict[str, str] = Field(
        default_factory=dict,
        description="Which column is which, such as {arrival: ts, prompt_tokens: in, output_tokens: out}.",
    )
    unit: Literal["s", "ms", "us", "ns"] | None = Field(
        default=None, description="Unit of numeric arrival times whose name does not tell it."
    )


@READERS.register("columns")
class ColumnsReader:
    """CSV, Parquet or JSON lines with arrival times and two lengths."""

    Options: ClassVar[type[ReaderOptions]] = ColumnsOptions

    def sniff(self, file: TraceFile) -> bool:
        """Recognise the names of both lengths, or of the arrivals and one."""
        known = recognised(first_names(file))
        return sum(role in known for role in NEEDED) >= 2

    def read(self, file: TraceFile, options: ColumnsOptions) -> Trace:
        """Read all rows; raises `TraceError` for columns that are missing or may be meant both."""
        table = table_of(file)
        roles = mapping_of(file.path, table.names, options.columns)
        if "arrival" in roles:
            options.check_recorded(file.path, roles["arrival"])
            arrival_ns, how = _arrivals(table, roles["arrival"], options.unit)
            loop, named = "open loop: recorded arrivals", f"{roles['arrival']} ({how})"
        elif options.given:
            arrival_ns, loop = options.made_ns(table.rows)
            named = "no column"
        else:
            raise TraceError(
                f"{file.path}: no column arrival_s, timestamp or the like gives the arrivals; has: "
                f"{', '.join(table.names)}; say which, columns: {{arrival: NAME}} (--columns arrival=NAME), "
                f"or set {CHOICES}"
            )
        prompt, output = (_lengths(table, roles[role]) for role in ("prompt_tokens", "output_tokens"))
        draft = Draft(file, "columns", arrival_ns, prompt, output, rows=table)
        draft.columns = {"arrival": named} | {role: name for role, name in roles.items() if role != "arrival"}
        draft.assume("columns recognised: " + ", ".join(f"{r} = {name}" for r, name in draft.columns.items()))
        _add_separate_cache(draft, table, roles)
        draft.assume(f"{loop}; no prefix information")
        if "max_tokens" in roles:
            draft.max_tokens = _lengths(table, roles["max_tokens"])
        if "priority" in roles:
            draft.priority = table.integers(roles["priority"])
        draft.labels = {role: table.objects(roles[role]) for role in LABELS if role in roles}
        if "request_id" in roles:
            draft.request_ids = draft.labels["request_id"].tolist()
        if "cached_tokens" in roles:
            check_cached(draft, f"column {roles['cached_tokens']}", draft.labels["cached_tokens"])
            draft.assume(
                "cached tokens are counted in the prompts, and kept as a label: hits are not replayed"
            )
        models = len(set(draft.labels.get("model", np.array([], dtype=object)).tolist()))
        if models > 1:
            draft.assume(f"requests to {models} models are replayed on one")
        unused = [name for name in table.names if name not in roles.values() and normal(name) not in SEPARATE]
        if unused:
            draft.changes.append(
                f"columns not used: {', '.join(unused[:12])}{' ...' if len(unused) > 12 else ''}"
            )
        return finish(draft)


def first_names(file: TraceFile) -> list[str]:
    """Return the columns of a file by its head alone; empty if it is no table."""
    if file.is_parquet:
        return ParquetTable.names_of(file)
    if not file.is_json:
        return sorted(file.header)
    try:
        first = json.loads(file.first_row)
    except (ValueError, RecursionError):
        return []
    return list(JsonTable.flat(first)) if isinstance(first, dict) else []


def table_of(file: TraceFile) -> Table:
    """Return a file's columns, whatever it is: Parquet, JSON or CSV."""
    if file.is_parquet:
        return ParquetTable(file)
    return JsonTable(file) if file.is_json else CsvTable(file)


def _lengths(table: Table, name: str) -> Int64:
    """Return a column of lengths; whole numbers written `12.0`, as pandas does, are read as such."""
    texts = table.objects(name)
    whole = [_WHOLE.fullmatch(text) for text in texts.tolist()[:1000]]
    if not any(whole):
        return table.tokens(name)
    for row, text in enumerate(texts.tolist()):
        if not re.fullmatch(r"\d{1,10}(\.0+)?", text) or int(text.partition(".")[0]) > 2**31 - 1:
            table.fail(row, f"column {name} is {shown(text)}; allowed: a whole number of tokens from 0")
    return np.array([int(text.partition(".")[0]) for text in texts.tolist()], dtype=np.int64)


def _arrivals(table: Table, name: str, unit: str | None) -> tuple[Int64, str]:
    """Return the arrivals, and how they were understood."""
    texts = table.objects(name).tolist()
    if is_stamp(texts[0]):
        return stamps_ns(table, name, texts), "calendar stamps"
    named = unit_of(name)
    if unit and named and unit != named:
        raise TraceError(f"{table.file.path}: option unit is {unit}, but column {name} says {named}")
    unit = unit or named
    if unit:
        return table.times_ns(name, UNITS_NS[unit]), unit
    try:
        values = [Decimal(texts[0]), Decimal(texts[-1])]
    except InvalidOperation:
        table.fail(
            0, f"column {name} is {shown(texts[0])}; allowed: a number or a stamp 2026-03-01T09:00:00Z"
        )
    for word, unit_ns in UNITS_NS.items():
        if all(
            value.is_finite() and EPOCH_S[0] <= value * unit_ns / NS_PER_S <= EPOCH_S[1] for value in values
        ):
            return table.times_ns(name, unit_ns), f"{word} since 1970, by their size"
    raise TraceError(
        f"{table.file.path}: column {name} ({shown(texts[0])} to {shown(texts[-1])}): in s, ms, us or ns? "
        "Set the option unit (-o unit=ms; trace_options: {unit: ms})"
    )


def _add_separate_cache(draft: Draft, table: Table, roles: dict[str, str]) -> None:
    """Add the cache counts that Anthropic's API keeps apart from input_tokens."""
    names = [name for name in table.names if normal(name) in SEPARATE]
    if not names or normal(roles["prompt_tokens"]) != "input_tokens":
        return
    for name in names:
        draft.prompt_tokens = draft.prompt_tokens + table.tokens(name)
    draft.assume(f"{', '.join(names)} are counted apart from {roles['prompt_tokens']} (Anthropic): added")
