"""What the engine needs to know of each replica: the parts, already built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from simserve.core.acceptance import Acceptance
from simserve.experts.state import ExpertPlan
from simserve.latency.base import StepLatency
from simserve.latency.lockstep import LockstepLatency
from simserve.policy.base import Policy


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
