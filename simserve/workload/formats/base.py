"""The contract of a trace format: recognise a file by its content, and turn it into a `Trace`."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from pydantic import BaseModel, ConfigDict

from simserve.core import Trace
from simserve.registry import Registry
from simserve.workload.blocks import fits
from simserve.workload.source import TraceFile

# Rows of a CSV file, written the same way on every machine.


def csv_bytes(columns: dict[str, Iterable[Any]]) -> bytes:
    """Return a CSV with a header, LF line ends, quotes only where needed."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return out.getvalue().encode()


def id_texts(trace: Trace) -> list[str]:
    """Return each row's block ids as `11|22|33`."""
    return ["|".join(map(str, ids)) for ids in id_lists(trace)]


def id_lists(trace: Trace) -> list[list[int]]:
    """Return each row's block ids."""
    if trace.block_ids is None or trace.block_offsets is None:
        return [[] for _ in range(len(trace))]
    ids: list[int] = trace.block_ids.tolist()
    edges: Sequence[int] = trace.block_offsets.tolist()
    return [ids[a:b] for a, b in pairwise(edges)]


def counts_agree(trace: Trace) -> bool:
    """Return whether every row has one id per started block, or every row one per full block."""
    if trace.block_offsets is None:
        return True
    return fits(trace.prompt_tokens, np.diff(trace.block_offsets), trace.block_tokens) is not None


def has_partial_blocks(trace: Trace) -> bool:
    """Return whether partial last blocks have ids (also if there happens to be no partial block)."""
    if trace.block_offsets is None:
        return False
    return fits(trace.prompt_tokens, np.diff(trace.block_offsets), trace.block_tokens) == "ceil"


class ReaderOptions(BaseModel):
    """Base of every format's options: frozen, unknown names refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class TraceReader(Protocol):
    """One trace format. Stateless: the registry holds the class, each load makes an instance."""

    Options: ClassVar[type[ReaderOptions]]

    def sniff(self, file: TraceFile) -> bool:
        """Return whether `file` is of this format, judged by its first line (or magic bytes) alone."""
        ...

    def read(self, file: TraceFile, options: Any) -> Trace:
        """Return the trace. Raises `TraceError` naming file, line, column and value.

        `options` is an instance of the class's own `Options`. What was assumed, dropped or reordered goes
        into the trace's origin.
        """
        ...


READERS: Registry[type[TraceReader]] = Registry("trace format", "simserve.workload.formats")


# The contract of a format that traces can be written in.


class TraceWriter(Protocol):
    """Writes one format. Reading the result back gives the same trace, but for its `losses`."""

    suffixes: ClassVar[tuple[str, ...]]
    """Endings that a file of this format may have (".gz" apart)."""

    def losses(self, trace: Trace) -> list[str]:
        """Return what of the trace this format cannot hold, in words; empty if it can hold all."""
        ...

    def encode(self, trace: Trace, path: Path) -> bytes:
        """Return the content of the file, not compressed; what cannot be held is left out."""
        ...


WRITERS: Registry[type[TraceWriter]] = Registry("writable trace format", "simserve.workload.formats")


def column_losses(trace: Trace, *held: str) -> list[str]:
    """Return the losses of a format that has only the `held` ones of the optional columns."""
    words = {
        "max_tokens": "output limits (max_tokens)",
        "priority": "priorities",
        "session": "sessions and think times",
        "block_ids": "block ids (prefix reuse)",
    }
    lost = [text for name, text in words.items() if name not in held and getattr(trace, name) is not None]
    if trace.labels and "labels" not in held:
        lost.append(f"columns {', '.join(trace.labels)}")
    return lost


def decimal(value: int, unit: int) -> str:
    """Write an integer number of `unit`-ths (a power of ten) as an exact decimal without trailing zeros."""
    whole, part = divmod(value, unit)
    return f"{whole}.{part:0{len(str(unit)) - 1}d}".rstrip("0") if part else str(whole)
