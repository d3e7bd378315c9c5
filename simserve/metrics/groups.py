"""Groups of attention ranks that step together: what a step waits for, and how uneven its ranks are."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from simserve.core import GroupResult, ReplicaResult, Result
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
