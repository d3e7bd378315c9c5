"""simserve's own columns, as CSV or Parquet: the format to write by hand, and the one that holds everything.

Columns: one of arrival_s, arrival_ms, arrival_ns; prompt_tokens; output_tokens. Optional: max_tokens,
priority, session_id with think_s (or _ms, _ns: the pause after the previous turn's answer), and
block_ids_<tokens>, ids of blocks of that size (`11|22` in CSV, a list in Parquet). Prompts are whole: a
later turn's includes its history. Other columns are kept as labels; a request_id is checked for duplicates.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from simserve.core import Trace
from simserve.errors import TraceError
from simserve.units import NS_PER_MS, NS_PER_S
from simserve.workload.blocks import Int64
from simserve.workload.draft import Draft, Rows, adopt, check_cached, checked_blocks, finish
from simserve.workload.formats.base import (
    READERS,
    WRITERS,
    ReaderOptions,
    counts_agree,
    csv_bytes,
    decimal,
    id_lists,
    id_texts,
)
from simserve.workload.source import TraceFile
from simserve.workload.tables.csv import CsvTable
from simserve.workload.tables.parquet import ParquetTable
from simserve.workload.transform import first_turns

LENGTHS = ("prompt_tokens", "output_tokens")
UNITS_NS = {"s": NS_PER_S, "ms": NS_PER_MS, "ns": 1}
BLOCKS = re.compile(r"block_ids_(\d+)")
SESSION = "session_id"
CACHED = "cached_tokens"
_ADAPTER = re.compile(r"lora|adapter", re.IGNORECASE)


class Table(Rows, Protocol):
    """A file's columns: `CsvTable` or `ParquetTable`."""

    names: list[str]
    rows: int
    file: TraceFile

    def require(self, columns: tuple[str, ...]) -> None:
        """Raise a `TraceError` naming the first of `columns` that is not there."""
        ...

    def tokens(self, name: str) -> Int64:
        """Return a column of lengths."""
        ...

    def integers(self, name: str) -> Int64:
        """Return a column of whole numbers."""
        ...

    def times_ns(self, name: str, unit_ns: int) -> Int64:
        """Return a column of times."""
        ...

    def objects(self, name: str) -> NDArray[np.object_]:
        """Return a column as text."""
        ...

    def id_lists(self, name: str) -> list[list[str]]:
        """Return a column of lists of ids."""
        ...


class PlainOptions(ReaderOptions):
    """The columns say everything."""


@READERS.register("plain")
class PlainReader:
    """CSV or Parquet with prompt_tokens and output_tokens."""

    Options: ClassVar[type[ReaderOptions]] = PlainOptions

    def sniff(self, file: TraceFile) -> bool:
        """Recognise the names of the columns."""
        names = set(ParquetTable.names_of(file)) if file.is_parquet else file.header
        return names >= set(LENGTHS) and any(f"arrival_{unit}" in names for unit in UNITS_NS)

    def read(self, file: TraceFile, options: PlainOptions) -> Trace:
        """Read all rows."""
        table: Table = ParquetTable(file) if file.is_parquet else CsvTable(file)
        table.require(LENGTHS)
        arrival = _time_column(table, "arrival")
        if arrival is None:
            raise TraceError(
                f"{file.path}: no column arrival_s, arrival_ms or arrival_ns; has: {', '.join(table.names)}"
            )
        draft = Draft(
            file,
            "plain",
            table.times_ns(*arrival),
            table.tokens("prompt_tokens"),
            table.tokens("output_tokens"),
            rows=table,
        )
        draft.assume(f"arrivals from column {arrival[0]}; time 0 is the first")
        used = {
            *LENGTHS,
            arrival[0],
            *_add_options(draft, table),
            *_add_sessions(draft, table),
            *_add_ids(draft, table),
        }
        if "request_id" in table.names:
            draft.request_ids = table.objects("request_id").tolist()
        draft.labels |= {name: table.objects(name) for name in table.names if name not in used}
        for name in draft.labels:
            if _ADAPTER.search(name):
                draft.assume(f"column {name}: adapters are not simulated, all requests run the model alone")
        if CACHED in draft.labels:
            check_cached(draft, f"column {CACHED}", draft.labels[CACHED])
        return finish(draft)


def _add_options(draft: Draft, table: Table) -> set[str]:
    if "max_tokens" in table.names:
        draft.max_tokens = table.tokens("max_tokens")
    if "priority" in table.names:
        draft.priority = table.integers("priority")
    return {"max_tokens", "priority"}


def _add_sessions(draft: Draft, table: Table) -> set[str]:
    think = _time_column(table, "think")
    if SESSION not in table.names:
        if think is not None:
            raise TraceError(f"{table.file.path}: column {think[0]} needs a column {SESSION}")
        return set()
    if think is None:
        draft.assume(f"open loop: {SESSION} without think_s, so turns keep their recorded arrivals")
        return set()
    codes: dict[str, int] = {}
    names = table.objects(SESSION).tolist()
    draft.session = np.array(
        [codes.setdefault(name or f"\0{row}", len(codes)) for row, name in enumerate(names)], dtype=np.int64
    )
    first = first_turns(draft.session, table.rows)
    draft.think_ns = np.where(first, 0, table.times_ns(*think))
    draft.assume(
        f"closed loop, {first.sum():,} sessions: a later turn starts {think[0]} after the last answer"
    )
    return {SESSION, think[0]}


def _add_ids(draft: Draft, table: Table) -> set[str]:
    columns = [name for name in table.names if BLOCKS.fullmatch(name)]
    if not columns:
        draft.assume("no block_ids: no prefix information")
        return set()
    if len(columns) > 1:
        raise TraceError(
            f"{table.file.path}: only one column of block ids is possible, not {', '.join(columns)}"
        )
    name = columns[0]
    size = int(name.rpartition("_")[2])
    if not size:
        raise TraceError(f"{table.file.path}: column {name}: a block has at least 1 token")
    blocks, size, _ = checked_blocks(
        draft,
        table,
        name,
        table.id_lists(name),
        draft.prompt_tokens,
        usual=size,
        given=size,
        tolerant=False,
    )
    adopt(draft, table, name, blocks, size)
    return {name}


def _time_column(table: Table, what: str) -> tuple[str, int] | None:
    """Return the name and unit of the one column `<what>_<unit>`; None if there is none."""
    found = [
        (f"{what}_{unit}", unit_ns) for unit, unit_ns in UNITS_NS.items() if f"{what}_{unit}" in table.names
    ]
    if len(found) > 1:
        raise TraceError(
            f"{table.file.path}: columns {found[0][0]} and {found[1][0]} both give the {what} time"
        )
    return found[0] if found else None


# simserve's own columns, as CSV or Parquet by the file's ending: holds everything.


@WRITERS.register("plain")
class PlainWriter:
    """See `readers.plain` for the columns."""

    suffixes: ClassVar[tuple[str, ...]] = (".csv", ".parquet")

    def losses(self, trace: Trace) -> list[str]:
        """Nothing is lost, unless block ids disagree with the lengths (such a file would be refused)."""
        return [] if counts_agree(trace) else ["block ids that disagree with the lengths"]

    def encode(self, trace: Trace, path: Path) -> bytes:
        """Return the file."""
        if ".parquet" in path.suffixes:
            return _parquet(trace)
        return csv_bytes(
            {"arrival_s": [decimal(ns, NS_PER_S) for ns in trace.arrival_ns.tolist()]}
            | _columns(trace)
            | ({} if trace.block_ids is None else {f"block_ids_{trace.block_tokens}": id_texts(trace)})
            | {name: column.tolist() for name, column in trace.labels.items()}
        )


def _parquet(trace: Trace) -> bytes:
    import pyarrow as pa
    from pyarrow import parquet

    columns: dict[str, Any] = {"arrival_ns": trace.arrival_ns} | _columns(trace)
    if trace.block_ids is not None:
        columns[f"block_ids_{trace.block_tokens}"] = pa.array(id_lists(trace), pa.list_(pa.int64()))
    labels = {name: pa.array(column.tolist(), pa.string()) for name, column in trace.labels.items()}
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.table(columns | labels), sink, compression="zstd")
    return sink.getvalue().to_pybytes()


def _columns(trace: Trace) -> dict[str, Any]:
    columns = {
        "prompt_tokens": trace.prompt_tokens,
        "output_tokens": trace.output_tokens,
        "max_tokens": trace.max_tokens,
        "priority": trace.priority,
        "session_id": trace.session,
        "think_ns": trace.think_ns,
    }
    return {name: column for name, column in columns.items() if column is not None}
