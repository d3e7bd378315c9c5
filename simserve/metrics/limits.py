"""What limits a pool: the resource that would have to grow first, and what shows it.

The order of the questions is that of an engine's scheduler. If requests wait, what did the head of the queue
wait for (`WaitReason`): KV blocks, scheduler slots, or the time of the steps? If it is time, or nobody waits,
did steps go into collectives, and which of the GPU's limits are they near to: FLOP/s or HBM bandwidth? Steps
near to neither are named by what the engine adds, or by their small kernels. In a split the links are asked
first; with FFN GPUs of their own, steps are limited by the side that hardly waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from simserve.core import PoolFacts, ReplicaResult, Result, WaitReason
from simserve.metrics.groups import ATTENTION_SIDE, FFN_SIDE, NETWORK, sides
from simserve.metrics.utilisation import Use
from simserve.metrics.window import Span, ratio

QUEUED = 0.1
"""Share of the busy time with a queue from which on the queue decides."""
IDLE = 0.6
"""Share of busy time below which nothing limits."""
NEAR = 0.35
"""Use of FLOP/s or bandwidth in busy time below which steps wait for neither."""
MOST = 0.5
"""Share of the step time in collectives from which on communication decides [our choice]."""
COMMUNICATION = frozenset({"collectives", "dispatch", "combine"})
ENGINE = frozenset({"engine overhead", "engine overhead and drafts"})
"""Groups of kernels (`latency.op_times`, `latency.lockstep_books`) of transfers, and of the engine."""
LINK_BUSY = 0.7
"""Share of the time that a link is in use from which on it decides."""


SIDE_BUSY = 0.85
"""Share of a step from which on the busiest side of attention-FFN disaggregation decides; below, all wait."""
_SIDE_REMEDIES = {
    ATTENTION_SIDE: "more attention GPUs for the FFN GPUs, FP8 KV, or fewer sequences for each",
    FFN_SIDE: "more FFN GPUs for the attention GPUs, more even experts, or larger microbatches",
    NETWORK: "a faster network, or a copy per node instead of one per GPU",
}


@dataclass(frozen=True)
class Limit:
    """What limits one pool."""

    pool: str
    resource: str
    """compute, HBM bandwidth, communication, KV capacity, scheduler slots, link, launches and host, small
    kernels, or nothing; with FFN GPUs also attention side, FFN side, network or round trip."""
    evidence: str
    """The figures that show it, in a sentence."""
    remedy: str
    """What would move the limit."""


def limits(result: Result, uses: Sequence[Use], span: Span) -> list[Limit]:
    """Return what limits each pool, in the order of `uses`; nothing for a pool that did no step."""
    facts = {pool.pool: pool for pool in result.pools}
    return [_limit(result, use, facts[use.pool], span) for use in uses if use.pool in facts and use.steps]


def _limit(result: Result, use: Use, facts: PoolFacts, span: Span) -> Limit:
    replicas = [replica for replica in result.replicas if replica.pool == use.pool]
    busy = use.busy or 0.0
    link = _link_use(result, replicas, span)
    if link is not None and link[1] >= LINK_BUSY:
        evidence = f"the {link[0]} link of a replica was in use {link[1]:.0%} of the time"
        return Limit(
            use.pool, "link", evidence, "more or faster links, or a longer prefix cached where it is read"
        )
    queued, by_kv, by_slots = _queue_shares(replicas)
    if queued >= QUEUED and by_kv >= max(by_slots, 0.5):
        evidence = (
            f"requests waited during {queued:.0%} of the busy time, and in {by_kv:.0%} of that the head of "
            "the queue did not find the KV blocks that it needed"
        )
        return Limit(
            use.pool, "KV capacity", evidence, "more memory for KV: FP8 KV, more GPUs, shorter contexts"
        )
    if queued >= QUEUED and by_slots >= 0.5:
        evidence = (
            f"requests waited during {queued:.0%} of the busy time, and in {by_slots:.0%} of that all slots "
            "were taken"
        )
        return Limit(use.pool, "scheduler slots", evidence, "a larger max_num_seqs, or more replicas")
    if busy < IDLE and queued < QUEUED:
        evidence = f"busy {busy:.0%} of the time, and requests waited during {queued:.0%} of that"
        return Limit(use.pool, "nothing", evidence, "more load fits")
    return _side_limit(result, use) or _step_limit(use, busy, queued, _operations(result))


def _side_limit(result: Result, use: Use) -> Limit | None:
    """Return which side limits the steps of attention-FFN disaggregation; None without it."""
    of_pool = [sides(group) for group in result.groups if group.pool == use.pool and group.ffn_gpus]
    shares = max(filter(None, of_pool), key=lambda one: max(one.values()), default=None)
    if shares is None:
        return None
    worked = ", ".join(f"the {name} {share:.0%}" for name, share in shares.items())
    evidence = f"in its steps the sides worked for so much of the time: {worked}"
    name, share = max(shares.items(), key=lambda one: one[1])
    if share < SIDE_BUSY:
        remedy = "more microbatches, or a faster network: every side waits for the others"
        return Limit(use.pool, "round trip", evidence, remedy)
    return Limit(use.pool, name, evidence, _SIDE_REMEDIES[name])


def _step_limit(use: Use, busy: float, queued: float, operations: dict[str, float]) -> Limit:
    """Return which of the GPU's limits the steps are near to."""
    compute = (use.hfu or 0.0) / busy if busy else 0.0
    bandwidth = (use.mbu or 0.0) / busy if busy else 0.0
    evidence = (
        f"busy {busy:.0%} of the time; in it {compute:.0%} of the GPUs' peak FLOP/s and {bandwidth:.0%} of "
        f"their HBM bandwidth were used, and requests waited during {queued:.0%} of it"
    )
    talk = sum(operations.get(name, 0.0) for name in COMMUNICATION)
    if talk >= MOST:
        remedy = "faster links, or fewer GPUs per replica"
        return Limit(
            use.pool, "communication", f"collectives take {talk:.0%} of the step time; {evidence}", remedy
        )
    if max(compute, bandwidth) < NEAR:
        remedy = "larger batches, or fewer GPUs per replica: steps are short of work"
        engine = sum(operations.get(name, 0.0) for name in ENGINE)
        if operations and engine >= NEAR:
            evidence = f"the engine adds {engine:.0%} of the step time; {evidence}"
            return Limit(use.pool, "launches and host", evidence, remedy)
        return Limit(use.pool, "small kernels", evidence, remedy)
    if compute >= bandwidth:
        return Limit(
            use.pool, "compute", evidence, "faster or more GPUs, FP8, or prompts found in a prefix cache"
        )
    return Limit(
        use.pool, "HBM bandwidth", evidence, "larger batches, FP8 weights or KV, or more GPUs per replica"
    )


def _operations(result: Result) -> dict[str, float]:
    """Return the shares of the step time by group of kernels; nothing for several pools, which share them."""
    total = sum(result.op_ns.values())
    return {name: ns / total for name, ns in result.op_ns.items()} if total and len(result.pools) == 1 else {}


def _queue_shares(replicas: Sequence[ReplicaResult]) -> tuple[float, float, float]:
    """Return the share of busy time with a queue, and the shares of waiting for KV blocks and for slots."""
    busy_ns = queued_ns = 0.0
    for replica in replicas:
        line = replica.timeline
        duration = (line.end_ns - line.start_ns).astype(np.float64)
        busy_ns += duration.sum()
        queued_ns += duration[line.waiting >= 0.5].sum()
    waited_ns = np.sum([one.waited_ns or (0,) * len(WaitReason) for one in replicas], axis=0)
    return (
        ratio(queued_ns, busy_ns) or 0.0,
        ratio(float(waited_ns[WaitReason.BLOCKS]), float(waited_ns.sum())) or 0.0,
        ratio(float(waited_ns[WaitReason.SLOTS]), float(waited_ns.sum())) or 0.0,
    )


def _link_use(result: Result, replicas: Sequence[ReplicaResult], span: Span) -> tuple[str, float] | None:
    """Return the direction and the use of the busiest link end of these replicas; None without a split."""
    names = {replica.name for replica in replicas}
    length_ns = span.end_ns - span.start_ns
    if result.split is None or length_ns <= 0:
        return None
    used = [
        (link.direction, link.busy_ns / length_ns) for link in result.split.links if link.replica in names
    ]
    return max(used, key=lambda one: one[1], default=None)
