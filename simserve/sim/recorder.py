"""Columns of the result: one slot per request of the trace, filled as things happen."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from struct import Struct

import numpy as np
from numpy.typing import NDArray

from simserve.core import Request, Status, Timeline, TokenGaps
from simserve.core.result import ABSENT

# State of a replica over time, as rows that are merged when they become many.

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


# Inter-token gaps of all requests as a weighted histogram, exact in sum and count.
#
# Bins are geometric, 0.4 % wide. Memory does not grow with tokens: gaps are buffered and folded into the
# bins.

_RATIO = 1.004
_LOG_RATIO = float(np.log(_RATIO))
_BINS = 11_000  # 1.004 ** 11000 ns is beyond 10^10 s
_BUFFER = 3 << 16


class GapHistogram:
    """Weighted gaps in ns."""

    __slots__ = ("_counts", "_sum_ns")

    def __init__(self) -> None:
        self._counts = np.zeros(_BINS, dtype=np.int64)
        self._sum_ns = 0

    def add_many(self, gaps_ns: NDArray[np.int64], weights: NDArray[np.int64]) -> None:
        """Count each gap (int64[n], at least 1) as often as its weight (int64[n]) says."""
        used = weights > 0
        gaps, counts = gaps_ns[used], weights[used]
        bins = np.floor(np.log(gaps) / _LOG_RATIO).astype(np.int64)
        np.add.at(self._counts, bins, counts)
        self._sum_ns += sum((gaps * counts).tolist())

    def result(self) -> TokenGaps:
        """Return the non-empty bins, each at its geometric middle."""
        used = np.flatnonzero(self._counts)
        middle = np.exp((used + 0.5) * _LOG_RATIO)
        return TokenGaps(gap_ns=middle, count=self._counts[used], sum_ns=self._sum_ns)


class GapRecorder:
    """Gaps of all requests, and of those in the steady window, with one buffer for both."""

    __slots__ = ("_buffer", "_every", "_steady")

    def __init__(self) -> None:
        self._every = GapHistogram()
        self._steady = GapHistogram()
        self._buffer = array("q")

    def add(self, gap_ns: int, count: int, steady: int) -> None:
        """Count a gap of `gap_ns` (at least 1) for `count` answers, `steady` of them in the steady window."""
        self._buffer.extend((gap_ns, count, steady))
        if len(self._buffer) >= _BUFFER:
            self._flush()

    def add_many(
        self, gaps_ns: NDArray[np.int64], counts: NDArray[np.int64], steady: NDArray[np.int64]
    ) -> None:
        """Count each gap for as many answers (int64[n] each)."""
        self._every.add_many(gaps_ns, counts)
        self._steady.add_many(gaps_ns, steady)

    def results(self) -> tuple[TokenGaps, TokenGaps]:
        """Return the gaps of all answers, and those of the steady window."""
        self._flush()
        return self._every.result(), self._steady.result()

    def _flush(self) -> None:
        gaps_ns, counts, steady = np.array(self._buffer, dtype=np.int64).reshape(-1, 3).T
        self._buffer = array("q")
        self.add_many(gaps_ns, counts, steady)


class Stamps:
    """What one side of a deployment writes down of each request, and the gaps between tokens.

    As such it is the record of prefill replicas, whose tokens nobody sees: no request of it is steady.
    """

    def __init__(self, requests: int) -> None:
        """`requests` rows."""
        self.first_scheduled_ns = _column(requests)
        self.first_token_ns = _column(requests)
        """On the prefill side: the end of the prompt."""
        self.cached_tokens = _column(requests, 0)
        self.preemptions = _column(requests, 0)
        self.requeued_ns = _column(requests, 0)
        self.verifications: dict[int, int] = {}
        """Steps in which a request's drafts were verified, by row; only where a replica speculates."""
        self.gaps = GapRecorder()

    def is_steady(self, request: Request) -> bool:
        """Return True if the request belongs to the steady window."""
        return False


class Recorder(Stamps):
    """What happened to each request, and the gaps between tokens. It only receives."""

    def __init__(self, requests: int, steady_window: tuple[int, int]) -> None:
        """`requests` rows; arrivals ranked in `steady_window` (low, high) form the steady part."""
        super().__init__(requests)
        self.steady_low, self.steady_high = steady_window
        self.arrival_ns = _column(requests)
        self.arrival_order = _column(requests)
        self.last_token_ns = _column(requests)
        self.output_tokens = _column(requests, 0)
        self.replica = _column(requests)
        self.status = _column(requests, Status.UNFINISHED)
        self.reason = _column(requests)
        self.reasons: dict[str, int] = {}
        self.arrived = 0
        self.ended = 0
        self.end_ns = 0
        self.wasted_tokens = 0
        """Output tokens made after their clients had given up."""
        self.dropped_ns: dict[int, int] = {}
        """When the engine dropped the requests whose clients gave up, by row."""

    def arrive(self, request: Request, now_ns: int) -> None:
        """Stamp an arrival and give it its rank."""
        self.arrival_ns[request.id] = now_ns
        self.arrival_order[request.id] = self.arrived
        self.arrived += 1

    def is_steady(self, request: Request) -> bool:
        """Return True if the request belongs to the steady window."""
        return self.steady_low <= self.arrival_order[request.id] < self.steady_high

    def refuse(self, request: Request, reason: str, now_ns: int) -> None:
        """Book a request that can never be served, with the reason in words."""
        self.status[request.id] = Status.REFUSED
        self.note(request, reason)
        self.ended += 1
        self.end_ns = max(self.end_ns, now_ns)

    def note(self, request: Request, reason: str) -> None:
        """Attach a reason to a request (refused, or its answer cut short)."""
        self.reason[request.id] = self.reasons.setdefault(reason, len(self.reasons))

    def complete(self, request: Request, output_tokens: int, now_ns: int) -> None:
        """Book the last token."""
        row = request.id
        self.last_token_ns[row] = now_ns
        self.output_tokens[row] = output_tokens
        self.status[row] = Status.COMPLETED
        self.ended += 1
        self.end_ns = now_ns

    def abandon(self, request: Request, output_tokens: int, seen_tokens: int, now_ns: int) -> None:
        """Book that the engine dropped a request whose client gave up when it had seen so many tokens."""
        self.wasted_tokens += output_tokens - seen_tokens
        self.output_tokens[request.id] = output_tokens
        self.status[request.id] = Status.ABANDONED
        self.dropped_ns[request.id] = now_ns
        self.ended += 1
        self.end_ns = max(self.end_ns, now_ns)

    def columns(self, client_ns: Sequence[int] = ()) -> dict[str, NDArray[np.int64]]:
        """Return the request columns of `Result` that this recorder fills.

        `client_ns`: by how much the client sees the tokens of each replica later. A constant delay on the way
        in is the same as one on the way out: all that the engine sees moves in time, and nothing else.
        """
        names = (
            "arrival_ns arrival_order first_scheduled_ns first_token_ns last_token_ns output_tokens "
            "cached_tokens preemptions requeued_ns replica status reason"
        )
        columns = {name: np.array(getattr(self, name), dtype=np.int64) for name in names.split()}
        if any(client_ns):
            late_ns = np.array(client_ns, dtype=np.int64)[columns["replica"]]
            for name in ("first_token_ns", "last_token_ns"):
                columns[name] = np.where(columns[name] >= 0, columns[name] + late_ns, columns[name])
            self.end_ns = max(self.end_ns, int(columns["last_token_ns"].max(initial=0)))
        return columns


def _column(requests: int, value: int = ABSENT) -> array[int]:
    return array("q", [value]) * requests
