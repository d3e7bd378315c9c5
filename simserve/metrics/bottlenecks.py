"""What limits a pool: the resource that would have to grow first, and the shares of time that show it.

Two things are told apart. What keeps requests out of the batch: the scheduler says what the head of its queue
waited for (`WaitReason`). And what the steps spend their time on: collectives, what the engine adds, or
kernels, which are near to FLOP/s or to HBM bandwidth or too small for either; with FFN GPUs of their own, the
side that hardly waits. Blocks, slots or the token budget limit a pool only if more of them would help: if a
larger batch would make steps longer in proportion, the steps are the limit although requests wait for blocks.
In a split the links are asked first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from simserve.core import PoolFacts, ReplicaResult, Result, WaitReason
from simserve.core.operation import COMMUNICATION, ENGINE
from simserve.core.totals import COMPUTE_EFFICIENCY, MEMORY_EFFICIENCY
from simserve.metrics.columns import held
from simserve.metrics.groups import sides
from simserve.metrics.utilisation import Headroom, Use, part_of, room_words
from simserve.metrics.window import Span, ratio

QUEUED = 0.1
"""Share of the time that a resource keeps the queue's head out from which on it is asked [our choice]."""
GAIN = 0.2
"""Gain in throughput by twice of a resource below which it is not the limit [our choice]."""
FITS = 1.5
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

NOTHING, NOBODY = "nothing", "nothing waits"
KERNELS, COMMUNICATES, LAUNCHES = "kernels", "links/communication", "launches and host"

_RESOURCES = {
    WaitReason.BLOCKS: "KV capacity",
    WaitReason.SLOTS: "scheduler slots",
    WaitReason.TOKENS: "token budget",
    WaitReason.TRANSFER: "KV transfer",
    WaitReason.PACE: "the scheduler's pacing",
    WaitReason.BATCH: "request-level batching",
    WaitReason.DECODE: "decode admission",
}
_OF_A_BATCH = (WaitReason.BLOCKS, WaitReason.SLOTS, WaitReason.TOKENS)
"""More of these makes the batch larger, which may make steps longer."""


@dataclass(frozen=True)
class Limit:
    """What limits one pool."""

    pool: str
    resource: str
    """What would have to grow first: one of `admission`'s resources (KV capacity, scheduler slots, token
    budget, KV transfer, decode admission, the scheduler's pacing, request-level batching), what `step` says,
    or nothing."""
    evidence: str
    """The figures that show it, in a sentence."""
    admission: str
    """The resource that kept requests out for longest, or `nothing waits`."""
    step: str
    """What most of the step time goes into: compute, HBM bandwidth, links/communication, launches and host,
    small kernels; with FFN GPUs also attention side, FFN side, network or round trip."""
    waited: float = 0.0
    """Share of the time in which somebody waited, mean over the replicas."""
    waits: dict[str, float] = field(default_factory=dict)
    """Shares of that time by what the head of the queue waited for; they add up to 1."""
    step_time: dict[str, float] = field(default_factory=dict)
    """Shares of the step time: links/communication, launches and host, kernels; empty if not known."""
    times_load: float | None = None
    """How many times the load fits at least, where nothing limits; None: no estimate."""


def limits(result: Result, uses: Sequence[Use], span: Span) -> list[Limit]:
    """Return what limits each pool, in the order of `uses`; nothing for a pool that did no step."""
    facts = {pool.pool: pool for pool in result.pools}
    return [
        _Pool(result, use, facts[use.pool], span).limit() for use in uses if use.pool in facts and use.steps
    ]


class _Pool:
    """One pool, and the figures that decide."""

    def __init__(self, result: Result, use: Use, facts: PoolFacts, span: Span) -> None:
        self.result, self.use, self.span = result, use, span
        self.replicas = [replica for replica in result.replicas if replica.pool == use.pool]
        self.open_ns = len(self.replicas) * (span.end_ns - span.start_ns)
        self.busy = use.busy or 0.0
        self.waited_ns = [
            sum(one.waited_ns[reason] for one in self.replicas if one.waited_ns) for reason in WaitReason
        ]
        op_ns = result.pool_op_ns.get(use.pool, {})
        self.step_time = _step_time(op_ns)
        self.headroom = Headroom(facts, use, self.replicas, self.open_ns, op_ns)
        self.keeper = max(_RESOURCES, key=self._kept_out)
        """The resource that kept requests out for longest."""
        self.keeps = self._kept_out(self.keeper) >= QUEUED
        self.step, self.step_words = self._side() or self._kernels()

    def limit(self) -> Limit:
        """Return what limits the pool."""
        return self._link() or self._wait() or self._nothing() or self._found(self.step, self._long())

    def _found(self, resource: str, evidence: str, times_load: float | None = None) -> Limit:
        total = sum(self.waited_ns)
        return Limit(
            self.use.pool,
            resource,
            evidence,
            admission=_RESOURCES[self.keeper] if self.keeps else NOBODY,
            step=self.step,
            waited=ratio(total, self.open_ns) or 0.0,
            waits={
                reason.words: self.waited_ns[reason] / total
                for reason in WaitReason
                if self.waited_ns[reason]
            },
            step_time=self.step_time,
            times_load=times_load,
        )

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
        if not self.keeps:
            return None
        evidence = self._waiting()
        if self.keeper in _OF_A_BATCH:
            if self._gain() < GAIN:
                return None
            evidence += f"; {self._gain_words()}"
        return self._found(_RESOURCES[self.keeper], evidence)

    def _gain(self) -> float:
        """Return by how much twice of the resource would help; slots are no use without blocks for them."""
        larger = 2.0
        if self.keeper is WaitReason.SLOTS:
            larger = min(larger, 1.0 / max(self.use.kv_use_peak or 0.0, 0.5))
        return self.headroom.gain(larger)

    def _gain_words(self) -> str:
        return f"by estimate, twice of it would bring {self._gain():.0%} more throughput"

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

    # -- nothing ---------------------------------------------------------------------------------------

    def _nothing(self) -> Limit | None:
        """Return that nothing limits, if hardly anybody was kept out and much more load fits."""
        if self.keeps:
            return None
        times = self.headroom.times_load() if self._steady() else 0.0
        if times >= FITS:
            evidence = f"{self._waiting()}; by estimate, {room_words(times)}"
            return self._found(NOTHING, evidence, times)
        if self.busy < IDLE:
            return self._found(NOTHING, f"{self._waiting()}; busy {self.busy:.0%} of the time")
        return None

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

    def _long(self) -> str:
        """Return why the steps are the limit, although requests may wait for something else."""
        waiting = self._waiting()
        if self.keeps and self.keeper in _OF_A_BATCH:
            waiting += f"; {self._gain_words()}"
        return f"{waiting}; {self.step_words}"

    def _side(self) -> tuple[str, str] | None:
        """Return which side limits the steps of attention-FFN disaggregation; None without it."""
        pool = self.use.pool
        of_pool = [sides(group) for group in self.result.groups if group.pool == pool and group.ffn_gpus]
        shares = max(filter(None, of_pool), key=lambda one: max(one.values()), default=None)
        if shares is None:
            return None
        worked = ", ".join(f"the {name} {share:.0%}" for name, share in shares.items())
        name, share = max(shares.items(), key=lambda one: one[1])
        words = f"in its steps the sides worked for so much of the time: {worked}"
        return "round trip" if share < SIDE_BUSY else name, words

    def _kernels(self) -> tuple[str, str]:
        """Return what most of the step time goes into; kernels by what of the GPU they use."""
        parts = self.step_time or {KERNELS: 1.0}
        largest = max(parts, key=lambda name: parts[name])
        kernels = self.busy * parts.get(KERNELS, 0.0)
        compute, bandwidth = (ratio(part or 0.0, kernels) or 0.0 for part in (self.use.hfu, self.use.mbu))
        shares = ", ".join(f"{share:.0%} {name}" for name, share in self.step_time.items())
        words = f"step time: {shares}; " if shares else ""
        words += (
            f"kernels used {compute:.0%} of the GPUs' peak FLOP/s and {bandwidth:.0%} of their HBM bandwidth"
        )
        if largest == KERNELS:
            of_compute = compute / COMPUTE_EFFICIENCY >= bandwidth / MEMORY_EFFICIENCY
            largest = "compute" if of_compute else "HBM bandwidth"
            largest = "small kernels" if max(compute, bandwidth) < NEAR else largest
        return largest, words


def _step_time(op_ns: Mapping[str, float]) -> dict[str, float]:
    """Return the shares of communication, launches and host, and kernels in the step time."""
    talk, total = part_of(op_ns, COMMUNICATION)
    engine, _ = part_of(op_ns, ENGINE)
    if total <= 0:
        return {}
    shares = {KERNELS: total - talk - engine, COMMUNICATES: talk, LAUNCHES: engine}
    return {name: ns / total for name, ns in shares.items() if ns > 0}


def _link_use(result: Result, replicas: Sequence[ReplicaResult], span: Span) -> tuple[str, float] | None:
    """Return the busiest link over which these replicas move KV, and its use; None if they move none."""
    names = {replica.name for replica in replicas}
    length_ns = span.end_ns - span.start_ns
    if length_ns <= 0:
        return None
    used = [(tier.kind, tier.read_link_ns / length_ns) for replica in replicas for tier in replica.kv_tiers]
    links = result.split.links if result.split else ()
    used += [(link.direction, link.busy_ns / length_ns) for link in links if link.replica in names]
    return max(used, key=lambda one: one[1], default=None)
