"""What a prefill/decode split adds to a result: columns per request, and totals of links."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]


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
