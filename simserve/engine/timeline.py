"""State of a replica over time, as rows that are merged when they become many."""

from __future__ import annotations

from struct import Struct

import numpy as np
from numpy.typing import NDArray

from simserve.core import Timeline

_COLUMNS = 8
_MOST_ROWS = 1 << 15
_ROW = Struct(f"{_COLUMNS}d")
pack = _ROW.pack
"""Returns a row from its columns, in the order of `Timeline`."""
MOST_BYTES = _MOST_ROWS * _ROW.size


class TimelineRecorder:
    """One row per run of steps; past 32,768 rows, neighbours in a time bin are merged into one.

    Merged rows hold sums of tokens and steps and the time-weighted mean of the counts, so totals and
    integrals over time never change. Rows of a pipeline's microbatches overlap in time.
    """

    __slots__ = ("rows",)

    def __init__(self) -> None:
        self.rows = bytearray()
        """Packed rows; a meter appends to them itself, which saves a call per run of steps."""

    def add(
        self,
        start_ns: int,
        end_ns: int,
        running: int,
        waiting: float,
        kv_used_blocks: int,
        prefill_tokens: int,
        decode_tokens: int,
        steps: int,
    ) -> None:
        """Record an interval in which the counts held (see `Timeline`)."""
        self.rows += pack(
            start_ns, end_ns, running, waiting, kv_used_blocks, prefill_tokens, decode_tokens, steps
        )
        if len(self.rows) >= MOST_BYTES:
            self.merge()

    def merge(self) -> None:
        """Merge neighbours; to be called when there are `MOST_BYTES` of rows."""
        self.rows[:] = _merge(self._table(), _MOST_ROWS // 4).tobytes()

    def result(self) -> Timeline:
        """Return the rows as columns."""
        start, end, *counts = self._table().T.copy()
        return Timeline(start.astype(np.int64), end.astype(np.int64), *counts)

    def _table(self) -> NDArray[np.float64]:
        return np.frombuffer(bytes(self.rows)).reshape(-1, _COLUMNS)


def _merge(table: NDArray[np.float64], bins: int) -> NDArray[np.float64]:
    """Merge rows (float64[m, 8], ordered by start) whose start lies in the same of `bins` equal intervals."""
    start, end = table[:, 0], table[:, 1]
    width = max(1.0, np.ceil((end[-1] - start[0]) / bins))
    label = ((start - start[0]) // width).astype(np.int64)
    first = np.flatnonzero(np.diff(label, prepend=-1))
    duration = np.maximum(end - start, 1.0)
    merged = np.empty((len(first), _COLUMNS))
    merged[:, 0] = start[first]
    merged[:, 1] = np.maximum.reduceat(end, first)
    span = merged[:, 1] - merged[:, 0]  # idle time counts as zero; a pipeline's rows overlap
    total = np.maximum(np.add.reduceat(duration, first), span)
    for column in (2, 3, 4):
        merged[:, column] = np.add.reduceat(table[:, column] * duration, first) / total
    for column in (5, 6, 7):
        merged[:, column] = np.add.reduceat(table[:, column], first)
    return merged
