"""simserve's own columns, as CSV or Parquet by the file's ending: holds everything."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from simserve.core import Trace
from simserve.units import NS_PER_S
from simserve.workload.csv_text import counts_agree, csv_bytes, id_lists, id_texts
from simserve.workload.writers.base import WRITERS, decimal


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
