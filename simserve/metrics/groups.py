"""Groups of attention ranks that step together: what a step waits for, and how uneven its ranks are."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from simserve.core import GroupResult, ReplicaResult, Result, Status, TierResult
from simserve.metrics.window import ratio

ATTENTION_SIDE, FFN_SIDE, NETWORK = "attention side", "FFN side", "network"

GROUP_DEFINITIONS = {
    "gamma": (
        "Picks that the busiest expert rank computes over those of the mean rank, per MoE layer: mean over "
        "the steps of a run, sampled for the popularity and placement of each time."
    ),
    "sides": (
        "Attention-FFN disaggregation: share of a group's busy time in which the slowest attention rank, the "
        "busiest FFN GPU or the busier direction of the network works; the rest is a bubble, in which they "
        "wait for microbatches."
    ),
    "phases": (
        "Time of a group's steps by what they wait for: the slowest rank's own kernels, shared expert, "
        "dispatch, the busiest rank's experts, combine; before any overlap, so shares are of their sum."
    ),
}


@dataclass(frozen=True)
class GroupUse:
    """One group."""

    name: str
    pool: str
    ranks: int
    steps: int
    phases: dict[str, float]
    """Shares of the sum of all phases."""
    gamma: list[float]
    """Per MoE layer; empty: all ranks are taken to get the same."""
    gamma_mean: float | None
    gamma_worst: float | None
    """Of the layer that is worst."""
    rank_imbalance: float | None
    """Tokens that the busiest attention rank computed over the mean rank's."""
    idle: float | None
    """Share of the group's steps that a rank spent with a dummy batch, mean over ranks."""
    rebalances: int
    skipped_rebalances: int
    moved_gb: float
    blocked_s: float
    ffn_gpus: int = 0
    """GPUs beside the ranks that compute their FFN layers."""
    sides: dict[str, float] = field(default_factory=dict)
    """Shares of the busy time in which attention side, FFN side and network work; empty without FFN GPUs."""


def sides(group: GroupResult) -> dict[str, float]:
    """Return the shares of the busy time in which each side works; nothing without FFN GPUs.

    1 - share is the side's bubble, on its busiest GPU.
    """
    if not group.ffn_gpus or not group.busy_ns:
        return {}
    of = group.phases_ns
    wire = max(of["dispatch"], of["combine"])
    work = {ATTENTION_SIDE: of["slowest rank"], FFN_SIDE: of["experts"], NETWORK: wire}
    return {name: ns / group.busy_ns for name, ns in work.items()}


def group_uses(result: Result) -> list[GroupUse]:
    """Return one row per group; ranks are the replicas that come in its order."""
    rows, first = [], {}
    for group in result.groups:
        start = first.setdefault(group.pool, 0)
        members = [replica for replica in result.replicas if replica.pool == group.pool]
        rows.append(_use(group, members[start : start + group.ranks]))
        first[group.pool] = start + group.ranks
    return rows


def _use(group: GroupResult, ranks: list[ReplicaResult]) -> GroupUse:
    tokens = np.array([rank.prefill_tokens + rank.decode_tokens for rank in ranks], np.float64)
    total = sum(group.phases_ns.values())
    gamma = list(group.gamma)
    worked = sum(rank.steps for rank in ranks)
    return GroupUse(
        name=group.name,
        pool=group.pool,
        ranks=group.ranks,
        steps=group.steps,
        phases={name: ns / total for name, ns in group.phases_ns.items()} if total else {},
        gamma=gamma,
        gamma_mean=float(np.mean(gamma)) if gamma else None,
        gamma_worst=max(gamma) if gamma else None,
        rank_imbalance=ratio(float(tokens.max()), float(tokens.mean())),
        idle=1.0 - worked / (group.steps * group.ranks) if group.steps else None,
        rebalances=group.rebalances,
        skipped_rebalances=group.skipped_rebalances,
        moved_gb=group.moved_bytes / 1e9,
        blocked_s=group.blocked_ns / 1e9,
        ffn_gpus=group.ffn_gpus,
        sides=sides(group),
    )


# KV tiers below HBM, as reported: what each gave to the prompts, what moved, and if its links kept up.


@dataclass(frozen=True)
class TierUse:
    """One tier of one replica over the whole run."""

    replica: str
    kind: str
    shared_by: str
    capacity_blocks: int
    used_blocks: int
    """Blocks in the store at the end, whoever put them there."""
    hit_tokens: int
    """Prompt tokens loaded instead of computed, those of preempted requests included."""
    hit_rate: float | None
    """hit_tokens / prompt tokens of the replica's completed requests."""
    refused_tokens: int
    """Prompt tokens that were found and computed nevertheless, because that was faster."""
    read_bytes: int
    written_bytes: int
    read_link: float | None
    """Share of the run in which the links were busy with reads, of all replicas that share them."""
    write_link: float | None
    """The same for writes; above 1 the link did not keep up with what was written."""


def tier_uses(result: Result) -> list[TierUse]:
    """Return one row per replica and tier, in the result's order; none without tiers."""
    return [
        _tiers_use(result, index, replica.name, tier)
        for index, replica in enumerate(result.replicas)
        for tier in replica.kv_tiers
    ]


def tier_warnings(uses: list[TierUse]) -> list[str]:
    """Return a warning for each link that was asked for more writes than it can do."""
    return [
        f"KV tier {use.kind} of {use.replica}: writing all that was evicted takes {use.write_link:.2f} times "
        "as long as the run; many blocks are found too late, or dropped before they are written"
        for use in uses
        if use.write_link is not None and use.write_link > 1
    ]


def _tiers_use(result: Result, index: int, name: str, tier: TierResult) -> TierUse:
    rows = (result.replica == index) & (result.status == Status.COMPLETED)
    prompt_tokens = int(result.prompt_tokens[rows].sum())
    arrivals = result.arrival_ns[result.arrival_ns >= 0]
    duration_ns = result.end_ns - int(arrivals.min()) if len(arrivals) else 0
    return TierUse(
        replica=name,
        kind=tier.kind,
        shared_by=tier.shared_by,
        capacity_blocks=tier.capacity_blocks,
        used_blocks=tier.used_blocks,
        hit_tokens=tier.hit_tokens,
        hit_rate=tier.hit_tokens / prompt_tokens if prompt_tokens else None,
        refused_tokens=tier.refused_tokens,
        read_bytes=tier.read_bytes,
        written_bytes=tier.written_bytes,
        read_link=tier.read_link_ns / duration_ns if duration_ns else None,
        write_link=tier.write_link_ns / duration_ns if duration_ns else None,
    )


# Speculative decoding of each pool: what was drafted, verified and accepted.

DRAFT_DEFINITIONS = {
    "acceptance length": (
        "Tokens per verification: 1 + accepted drafts / verifications, as vLLM and SGLang report it; "
        "accepted drafts beyond the end of an answer count."
    ),
    "acceptance rate": "Accepted drafts / verified drafts.",
    "ITL with speculation": (
        "The tokens that a step accepts leave together: a gap lies between two steps of an answer, not "
        "between two tokens. TPOT is per token as ever."
    ),
}


@dataclass(frozen=True)
class DraftUse:
    """One pool over the whole run."""

    pool: str
    verifications: int
    """Sequences that verified drafts, over all steps."""
    drafted_tokens: int
    accepted_tokens: int
    acceptance_length: float | None
    acceptance_rate: float | None
    verified_per_step: float | None
    """Sequences that verified drafts in a step, mean over the pool's steps."""


def draft_uses(result: Result) -> list[DraftUse]:
    """Return one row per pool that speculates."""
    rows = []
    for name in dict.fromkeys(replica.pool for replica in result.replicas):
        members = [replica for replica in result.replicas if replica.pool == name]
        found = [replica.drafting for replica in members if replica.drafting is not None]
        if not found:
            continue
        verifications = sum(one.verifications for one in found)
        drafted = sum(one.drafted_tokens for one in found)
        accepted = sum(one.accepted_tokens for one in found)
        rows.append(
            DraftUse(
                pool=name,
                verifications=verifications,
                drafted_tokens=drafted,
                accepted_tokens=accepted,
                acceptance_length=ratio(verifications + accepted, verifications),
                acceptance_rate=ratio(accepted, drafted),
                verified_per_step=ratio(verifications, sum(replica.steps for replica in members)),
            )
        )
    return rows
