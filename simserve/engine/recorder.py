"""Columns of the result: one slot per request of the trace, filled as things happen."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from simserve.core import Request, Status
from simserve.core.result import ABSENT
from simserve.engine.gaps import GapRecorder


class Recorder:
    """What happened to each request, and the gaps between tokens. It only receives."""

    def __init__(self, requests: int, steady_window: tuple[int, int]) -> None:
        """`requests` rows; arrivals ranked in `steady_window` (low, high) form the steady part."""
        self.steady_low, self.steady_high = steady_window
        self.arrival_ns = _column(requests)
        self.arrival_order = _column(requests)
        self.first_scheduled_ns = _column(requests)
        self.first_token_ns = _column(requests)
        self.last_token_ns = _column(requests)
        self.output_tokens = _column(requests, 0)
        self.cached_tokens = _column(requests, 0)
        self.preemptions = _column(requests, 0)
        self.requeued_ns = _column(requests, 0)
        self.replica = _column(requests)
        self.status = _column(requests, Status.UNFINISHED)
        self.reason = _column(requests)
        self.reasons: dict[str, int] = {}
        self.verifications: dict[int, int] = {}
        """Steps in which a request's drafts were verified, by row; only where a replica speculates."""
        self.gaps = GapRecorder()
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
