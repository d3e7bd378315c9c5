"""What the engine needs to know of a prefill/decode split: the parts, already built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from simserve.model.kv_transfer import KvTransferSize
from simserve.policy.split import Overlap, SplitEngine
from simserve.router.base import Router


@dataclass(frozen=True)
class LocalRule:
    """Which requests are not split: those for which either holds (Dynamo's conditional disaggregation)."""

    uncached_tokens: int
    """Prompt tokens that the decoding side has not cached, up to which a request stays."""
    prefill_queue: int | None
    """Requests waiting at the prefill replica, from which on a request stays; None: never for that."""


@dataclass(frozen=True)
class SwitchRule:
    """When a replica changes sides."""

    check_ns: int
    """Time between two looks."""
    switch_ns: int
    """From the end of its last request to its first one on the other side."""
    queue: int
    """Requests waiting per replica of a side, from which on it asks for a replica of the other."""
    idle_queue: int
    """Requests waiting per replica, up to which a side gives one up."""


@dataclass(frozen=True)
class SplitSpec:
    """A split, wired. Replicas are told apart by the role in their own specs."""

    engine: SplitEngine
    routers: Mapping[str, Router]
    """By role: prefill, decode, and mixed if there are such replicas. Fresh."""
    size: KvTransferSize
    overlap: Overlap
    handshake_ns: int
    link_bytes_per_s: Mapping[str, int]
    """By pool: what all links of one replica achieve together, each way."""
    reshard_bytes_per_s: Mapping[tuple[str, str], int]
    """By (prefill pool, decode pool): how fast KV is cut or joined where their ranks hold other heads."""
    lease_ns: int | None
    """How long a computed prompt waits for a reader; None: for ever."""
    failure_rate: float
    """Share of the transfers that are lost at their end."""
    on_failure: Literal["recompute", "error"]
    seed: int
    local: LocalRule | None = None
    switch: SwitchRule | None = None

    @property
    def room_first(self) -> bool:
        """True if no prompt is computed before the decoding side has room for it.

        So in engines that want it, and wherever KV leaves before the prompt is done: it must go somewhere.
        """
        return self.engine.room_first or self.overlap != "request"

    @property
    def target_first(self) -> bool:
        """True if the decoding replica is chosen when a request arrives, not when its prompt is computed."""
        return self.room_first or self.local is not None
