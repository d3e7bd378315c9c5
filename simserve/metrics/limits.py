"""What limits a pool: the resource that would have to grow first, and what shows it.

The scheduler says what the head of its queue waited for (`WaitReason`). Blocks, slots or the token budget
limit a pool only if more of them would help: if a larger batch would make steps longer in proportion, the
steps are the limit although requests wait for blocks. What limits steps is read from where their time went:
collectives, what the engine adds, or kernels, which are near to FLOP/s or to HBM bandwidth or too small for
either. In a split the links are asked first; with FFN GPUs of their own, steps are limited by the side that
hardly waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from simserve.core import PoolFacts, ReplicaResult, Result, WaitReason
from simserve.core.efficiency import COMPUTE_EFFICIENCY, MEMORY_EFFICIENCY
from simserve.metrics.groups import sides
from simserve.metrics.intervals import held
from simserve.metrics.utilisation import Use, contexts_read
from simserve.metrics.window import Span, ratio

QUEUED = 0.1
"""Share of the time that a resource keeps the queue's head out from which on it is asked [our choice]."""
GAIN = 0.2
"""Gain in throughput by twice of a resource below which it is not the limit [our choice]."""
FITS = 2.0
"""Multiple of the load from which on nothing limits a pool [our choice]."""
GROWS = 1.3
"""Growth of the requests in a pool, last third of arrivals over the second, above which it is not steady."""
IDLE = 0.6
"""Share of busy time below which nothing limits [our choice]."""
NEAR = 0.35
"""Use of FLOP/s or bandwidth in the time of kernels below which they are near to neither [our choice]."""
LINK_BUSY = 0.7
"""Share of the time that a link is in use from which on it decides [our choice]."""
SIDE_BUSY = 0.85
"""Share of a step from which on the busiest side of attention-FFN disaggregation decides; below, all wait."""

COMMUNICATION = frozenset({"collectives", "dispatch", "combine"})
ENGINE = frozenset({"engine overhead", "engine overhead and drafts"})
ATTENTION = frozenset({"attention, decode steps", "attention, steps with prompts"})
"""Groups of `Summary.operations` (see `latency.op_times`, `latency.lockstep_books`)."""

_RESOURCES = {
    WaitReason.BLOCKS: "KV capacity",
    WaitReason.SLOTS: "scheduler slots",
    WaitReason.TOKENS: "token budget",
    WaitReason.TRANSFER: "KV transfer",
    WaitReason.PACE: "the scheduler's pacing",
    WaitReason.BATCH: "request-level batching",
}


@dataclass(frozen=True)
class Limit:
    """What limits one pool."""

    pool: str
    resource: str
    """KV capacity, scheduler slots, token budget, KV transfer, the scheduler's pacing, request-level
    batching, compute, HBM bandwidth, communication, launches and host, small kernels, or nothing; with FFN
    GPUs also attention side, FFN side, network or round trip."""
    evidence: str
    """The figures that show it, in a sentence."""
    waited: float = 0.0
    """Share of the time in which somebody waited, mean over the replicas."""
    waits: dict[str, float] = field(default_factory=dict)
    """Shares of that time by what the head of the queue waited for; they add up to 1."""
    step_time: dict[str, float] = field(default_factory=dict)
    """Shares of the step time: communication, launches and host, kernels; empty if not known."""
    times_load: float | None = None
    """Estimate of how many times the load fits, where nothing limits; None: no estimate."""


def limits(result: Result, uses: Sequence[Use], span: Span) -> list[Limit]:
    """Return what limits each pool, in the order of `uses`; nothing for a pool that did no step."""
    facts = {pool.pool: pool for pool in result.pools}
    return [
        _Pool(result, use, facts[use.pool], span).limit() for use in uses if use.pool in facts and use.steps
    ]


class _Pool:
    """One pool, and the figures that decide."""

    def __init__(self, result: Result, use: Use, facts: PoolFacts, span: Span) -> None:
        self.result, self.use, self.facts, self.span = result, use, facts, span
        self.replicas = [replica for replica in result.replicas if replica.pool == use.pool]
        self.open_ns = len(self.replicas) * (span.end_ns - span.start_ns)
        self.busy = use.busy or 0.0
        self.waited_ns = [
            sum(one.waited_ns[reason] for one in self.replicas if one.waited_ns) for reason in WaitReason
        ]
        self.step_time = _step_time(result.pool_op_ns.get(use.pool, {}))

    def limit(self) -> Limit:
        """Return what limits the pool."""
        return self._link() or self._wait() or self._nothing() or self._side() or self._steps()

    def _found(self, resource: str, evidence: str, times_load: float | None = None) -> Limit:
        total = sum(self.waited_ns)
        shares = {
            reason.words: self.waited_ns[reason] / total for reason in WaitReason if self.waited_ns[reason]
        }
        waited = ratio(total, self.open_ns) or 0.0
        return Limit(self.use.pool, resource, evidence, waited, shares, self.step_time, times_load)

    # -- what keeps requests out -----------------------------------------------------------------------

    def _link(self) -> Limit | None:
        link = _link_use(self.result, self.replicas, self.span)
        if link is None or link[1] < LINK_BUSY:
            return None
        return self._found(
            "KV transfer", f"the {link[0]} link of a replica was in use {link[1]:.0%} of the time"
        )

    def _wait(self) -> Limit | None:
        """Return the resource that kept the head of the queue out, if more of it would help."""
        reason = max(_RESOURCES, key=self._kept_out)
        if self._kept_out(reason) < QUEUED:
            return None
        evidence = self._waiting()
        if reason in (WaitReason.BLOCKS, WaitReason.SLOTS, WaitReason.TOKENS):
            gain = self._gain(reason)
            evidence += f"; by estimate, twice of it would bring {gain:.0%} more throughput"
            if gain < GAIN:
                return None
        return self._found(_RESOURCES[reason], evidence)

    def _kept_out(self, reason: WaitReason) -> float:
        """Return the share of the time in which the head of the queue waited for this.

        That KV is on its way is no sign of a limit: on the decoding side of a split it always is.
        """
        if reason is WaitReason.TRANSFER and not self._computes_prompts():
            return 0.0
        return ratio(self.waited_ns[reason], self.open_ns) or 0.0

    def _computes_prompts(self) -> bool:
        split = self.result.split
        if split is None:
            return False
        return any(
            self.result.replicas[index].pool == self.use.pool
            for index in np.unique(split.columns.prefill_replica)
            if index >= 0
        )

    def _waiting(self) -> str:
        total = sum(self.waited_ns)
        if not total:
            return "no request waited"
        shares = sorted(((self.waited_ns[reason] / total, reason) for reason in WaitReason), reverse=True)
        words = ", ".join(f"{share:.0%} for {reason.words}" for share, reason in shares if share >= 0.005)
        waited = ratio(total, self.open_ns) or 0.0
        return f"requests waited during {waited:.0%} of the time, the head of the queue {words}"

    def _gain(self, reason: WaitReason) -> float:
        """Return by how much throughput would grow with twice of a resource.

        Of a step, the part g grows with the batch and the rest does not: r times the batch takes
        1 - g + r g times as long. More slots are no use without blocks for them.
        """
        grows = min(1.0, self._growing() / self.busy) if self.busy else 1.0
        larger = 2.0
        if reason is WaitReason.SLOTS:
            larger = min(larger, 1.0 / max(self.use.kv_use_peak or 0.0, 0.5))
        return larger / (1.0 - grows + larger * grows) - 1.0

    def _growing(self) -> float:
        """Return the share of the time that grows with the batch: attention, and matrix products by FLOPs.

        All communication counts as growing. Where the time of attention is not known it is taken from the KV
        that it reads and the FLOPs.
        """
        facts, seconds = self.facts, self.open_ns / 1e9
        if seconds <= 0:
            return 1.0
        flops = facts.peak_flops * facts.gpus_per_replica * seconds * COMPUTE_EFFICIENCY
        linear = sum(one.linear_tokens for one in self.replicas) * facts.flops_per_token / flops
        linear += self.step_time.get("communication", 0.0) * self.busy
        share = ratio(*_part_of(self.result.pool_op_ns.get(self.use.pool, {}), ATTENTION))
        if share:
            return linear + share * self.busy
        pairs = sum(one.prefill_pairs + one.decode_pairs for one in self.replicas) * facts.flops_per_pair
        moved = facts.hbm_bytes_per_s * facts.gpus_per_replica * seconds * MEMORY_EFFICIENCY
        read = sum(contexts_read(one) for one in self.replicas) * facts.kv_bytes_per_token / moved
        return linear + pairs / flops + read

    # -- nothing ---------------------------------------------------------------------------------------

    def _nothing(self) -> Limit | None:
        """Return that nothing limits, if hardly anybody was kept out and much more load fits."""
        if max(map(self._kept_out, _RESOURCES)) >= QUEUED:
            return None
        times = self._times_load()
        if times is not None and times >= FITS:
            about = float(f"{times:.1g}")
            evidence = f"{self._waiting()}; by estimate, about {about:g} times this load fits"
            return self._found("nothing", evidence, about)
        if self.busy < IDLE:
            return self._found("nothing", f"{self._waiting()}; busy {self.busy:.0%} of the time")
        return None

    def _times_load(self) -> float | None:
        """Return an estimate of how many times the load fits; None if the pool was not steady.

        Of the time u grows with the load and the rest is the same in every step, so f times the load makes
        steps (1 - u) / (1 - f u) times as long and holds f times that many requests, up to the share k of
        blocks or slots that were taken at most: f = 1 / (u + k (1 - u)).
        """
        if not self._steady():
            return None
        grows = min(1.0, self._growing())
        slots = self.facts.max_running
        taken = max((float(one.timeline.running.max(initial=0)) for one in self.replicas), default=0.0)
        full = max(self.use.kv_use_peak or 0.0, taken / slots if slots else 0.0)
        return 1.0 / max(grows + full * (1.0 - grows), 1e-3)

    def _steady(self) -> bool:
        """Return whether as many requests were in the pool in the last third of arrivals as in the second."""
        arrivals = self.result.arrival_ns[self.result.arrival_ns >= 0]
        if arrivals.size < 2 or arrivals.min() == arrivals.max():
            return False
        edges = np.linspace(arrivals.min(), arrivals.max(), 4)
        inside = np.zeros(3)
        for one in self.replicas:
            line = one.timeline
            inside += held(line.start_ns, line.end_ns, line.running + line.waiting, edges)
        return bool(inside[2] <= GROWS * inside[1])

    # -- steps -----------------------------------------------------------------------------------------

    def _side(self) -> Limit | None:
        """Return which side limits the steps of attention-FFN disaggregation; None without it."""
        pool = self.use.pool
        of_pool = [sides(group) for group in self.result.groups if group.pool == pool and group.ffn_gpus]
        shares = max(filter(None, of_pool), key=lambda one: max(one.values()), default=None)
        if shares is None:
            return None
        worked = ", ".join(f"the {name} {share:.0%}" for name, share in shares.items())
        evidence = f"in its steps the sides worked for so much of the time: {worked}"
        name, share = max(shares.items(), key=lambda one: one[1])
        return self._found("round trip" if share < SIDE_BUSY else name, evidence)

    def _steps(self) -> Limit:
        """Return what most of the step time goes into; kernels by what of the GPU they use."""
        parts = self.step_time or {"kernels": 1.0}
        largest = max(parts, key=lambda name: parts[name])
        kernels = self.busy * parts.get("kernels", 0.0)
        compute, bandwidth = (ratio(part or 0.0, kernels) or 0.0 for part in (self.use.hfu, self.use.mbu))
        evidence = self._waiting()
        if self.step_time:
            evidence += "; step time: " + ", ".join(f"{share:.0%} {name}" for name, share in parts.items())
        evidence += (
            f"; kernels used {compute:.0%} of the GPUs' peak FLOP/s and {bandwidth:.0%} of their HBM "
            "bandwidth"
        )
        if largest != "kernels":
            return self._found(largest, evidence)
        if max(compute, bandwidth) < NEAR:
            return self._found("small kernels", evidence)
        of_compute = compute / COMPUTE_EFFICIENCY >= bandwidth / MEMORY_EFFICIENCY
        return self._found("compute" if of_compute else "HBM bandwidth", evidence)


def _part_of(op_ns: Mapping[str, float], names: frozenset[str]) -> tuple[float, float]:
    """Return the time of some groups of kernels, and of all."""
    return sum(ns for name, ns in op_ns.items() if name in names), sum(op_ns.values())


def _step_time(op_ns: Mapping[str, float]) -> dict[str, float]:
    """Return the shares of communication, launches and host, and kernels in the step time."""
    talk, total = _part_of(op_ns, COMMUNICATION)
    engine, _ = _part_of(op_ns, ENGINE)
    if total <= 0:
        return {}
    shares = {"kernels": total - talk - engine, "communication": talk, "launches and host": engine}
    return {name: ns / total for name, ns in shares.items() if ns > 0}


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
