"""What a simulation leaves behind: columns per request, totals per replica, and nothing per token."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from simserve.core.totals import GroupResult, PoolFacts, ReplicaResult

# What a prefill/decode split adds to a result: columns per request, and totals of links.


@dataclass(frozen=True)
class SplitColumns:
    """When a request passed the stages of a prefill/decode split. Length n, -1 = absent (or not split)."""

    prefill_replica: Int64
    prefill_scheduled_ns: Int64
    """First scheduled on the prefill side."""
    prefill_end_ns: Int64
    """The prompt is computed."""
    room_ns: Int64
    """The decoding side holds blocks for the prompt."""
    transfer_end_ns: Int64
    """The last KV has arrived, or is known to be lost."""
    decode_scheduled_ns: Int64
    """First scheduled on the decoding side."""
    transfer_bytes: Int64
    """Moved from one side to the other."""
    transfer_ok: Int64
    """1: arrived, 0: lost."""
    decode_cached_tokens: Int64
    """Prompt tokens that the decoding side had, so that they need not move."""


@dataclass(frozen=True)
class LinkResult:
    """Totals of one direction of one replica's links."""

    replica: str
    direction: str
    """out or in."""
    bytes_per_s: int
    """What all links of the replica achieve together."""
    moved_bytes: int
    busy_ns: int
    """Time in which something was on its way."""


@dataclass(frozen=True)
class SplitResult:
    """What a prefill/decode split adds to a result."""

    columns: SplitColumns
    links: tuple[LinkResult, ...]
    first_token: str
    """Which side samples the first token that the client sees: prefill or decode."""
    room_first: bool
    """True if no prompt is computed before the decoding side has room for it."""
    kept_local: int
    """Requests that were not split."""
    failed_transfers: int
    role_changes: int
    """Times that a replica changed sides."""


Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]

ABSENT = -1
"""Value of a time stamp that never happened."""


class Status(IntEnum):
    """How a request ended."""

    COMPLETED = 0
    REFUSED = 1
    UNFINISHED = 2
    ABANDONED = 3
    """The client gave up; the engine dropped it. The client saw no token after that."""


@dataclass(frozen=True)
class TokenGaps:
    """Inter-token latencies of all requests, pooled, as a weighted histogram (bins narrower than 0.5 %)."""

    gap_ns: Float64
    """Middle of each non-empty bin, ascending."""
    count: Int64
    """Gaps in the bin."""
    sum_ns: int
    """Exact sum of all gaps."""


@dataclass(frozen=True)
class Result:
    """Outcome of one simulated run. Request columns have length n, in the trace's order; -1 = absent."""

    def __repr__(self) -> str:
        return f"<Result: {len(self.arrival_ns):,} requests>"

    arrival_ns: Int64
    """When the request reached the system (a closed loop decides this at run time)."""
    arrival_order: Int64
    """Rank of the arrival: 0 for the first."""
    first_scheduled_ns: Int64
    first_token_ns: Int64
    last_token_ns: Int64
    """Last token shown; for a request of 0 output tokens, the end of its prompt."""
    prompt_tokens: Int64
    output_tokens: Int64
    """Tokens produced (not asked for)."""
    cached_tokens: Int64
    """Prompt tokens found in the prefix cache at the first admission."""
    preemptions: Int64
    requeued_ns: Int64
    """Time spent waiting again after preemptions."""
    replica: Int64
    status: Int64
    """`Status` values."""
    reason: Int64
    """Index into `reasons` for refused, abandoned and cut requests, else -1."""
    reasons: tuple[str, ...]
    gaps: TokenGaps
    steady_gaps: TokenGaps
    """Gaps of the requests whose arrival rank lies in the steady window."""
    steady_window: tuple[int, int]
    """Arrival ranks [low, high) that form the steady window."""
    replicas: tuple[ReplicaResult, ...]
    pools: tuple[PoolFacts, ...]
    provenance_ns: dict[str, float]
    """Simulated busy time by where its latency came from: measured, interpolated, extrapolated, analytic."""
    end_ns: int
    """Last event that concerned a request (not the clock: cancelled sleeps outlive it)."""
    warnings: tuple[str, ...] = ()
    split: SplitResult | None = None
    """None without a prefill/decode split."""
    groups: tuple[GroupResult, ...] = ()
    """Groups of attention ranks that step together."""
    verifications: Int64 | None = None
    """Steps in which drafts of the request were verified, -1 if none were; None without speculation."""
    op_ns: dict[str, float] = field(default_factory=dict[str, float])
    """Simulated busy time by group of kernels; of ranks that step together by what their steps wait for."""
    pool_op_ns: dict[str, dict[str, float]] = field(default_factory=dict[str, dict[str, float]])
    """The same by pool; pools whose step latency is one object (equal deployments) have it together."""

    dropped_ns: Int64 | None = None
    """When the engine dropped a request whose client gave up, else -1; None if none did."""
    wasted_tokens: int = 0
    """Output tokens made after their clients had given up."""

    def __len__(self) -> int:
        return len(self.arrival_ns)
