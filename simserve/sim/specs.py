"""What the engine needs to know of a prefill/decode split: the parts, already built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from simserve.core.request import Acceptance
from simserve.engines.base import Overlap, Policy, SplitEngine
from simserve.experts.state import ExpertPlan
from simserve.latency.base import StepLatency
from simserve.latency.lockstep import LockstepLatency
from simserve.model.kv import KvTransferSize
from simserve.router.base import Router

# What the engine needs to know of each replica: the parts, already built.


@dataclass(frozen=True, eq=False)
class GroupSpec:
    """Attention ranks that step together: the same object in the spec of each."""

    name: str
    pool: str
    latency: LockstepLatency
    """May be shared with equal groups."""
    experts: ExpertPlan | None = None
    """How picks spread over experts, and where these lie; None: every rank gets the same."""
    ffn_gpus: int = 0
    """GPUs beside the ranks that compute their FFN layers."""


@dataclass(frozen=True)
class Clients:
    """How the requests of a trace are sent, and how long their answers are waited for."""

    closed_loop: int | None = None
    """Clients that each send the next request (or session) when the last has ended; None: at its time."""
    give_up_ns: int | None = None
    """After so long a client gives up on an answer that has not ended; None: never."""


@dataclass(frozen=True)
class ReplicaSpec:
    """One replica, wired: whatever steps together (a TP group, with its pipeline stages)."""

    name: str
    pool: str
    gpus: int
    policy: Policy
    """A fresh policy of its own."""
    latency: StepLatency
    """May be shared with equal replicas."""
    kv_blocks: int
    """Usable blocks."""
    block_size: int
    max_model_len: int
    """Longest sequence (prompt and output) that the replica accepts; must fit in kv_blocks."""
    limit_reason: str
    """Why max_model_len is what it is, in words, for refused requests."""
    max_num_batched_tokens: int | None = None
    """Prompt tokens of one step, as routers hear of it; None: no limit."""
    role: Literal["mixed", "prefill", "decode"] = "mixed"
    """Which half of a request it computes; mixed: all of it."""
    client_ns: int = 0
    """Time of a request outside the engine (API server, network, both ways): delays what the client sees."""
    acceptance: Acceptance | None = None
    """Set: the replica speculates, and this draws how many drafts each verification accepts."""
    group: GroupSpec | None = None
    """Set: it is one attention rank of this group, and `latency` is the group's."""


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
