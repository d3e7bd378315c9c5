"""How well the hardware was used: MFU, HFU, MBU, KV use, step sizes, per replica and per pool.

Work is counted by the engine (tokens and query-key pairs), constants come with the result (vendor peaks).
MLA, windows and MoE enter through those constants; the approximations are stated in `definitions.py`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from simserve.core import PoolFacts, ReplicaResult, Result
from simserve.core.operation import ATTENTION, COMMUNICATION
from simserve.core.totals import COMPUTE_EFFICIENCY, MEMORY_EFFICIENCY
from simserve.metrics.window import Span, kv_use, ratio


@dataclass(frozen=True)
class Use:
    """Use of one replica, or of all replicas of a pool together, over the whole run."""

    name: str
    pool: str
    gpus: int
    """Of a pool: with the FFN GPUs that its replicas share, if there are any."""
    requests: int
    """Requests whose last replica this was; in a split, those whose prompt it computed as well."""
    steps: int
    busy: float | None
    mfu: float | None
    hfu: float | None
    mbu: float | None
    kv_blocks: int
    kv_use_mean: float | None
    kv_use_peak: float | None
    prefill_tokens: int
    decode_tokens: int
    recomputed_tokens: int
    preemptions: int
    prefill_tokens_per_step: float | None
    decode_tokens_per_step: float | None
    tokens_per_step: float | None
    imbalance: float | None
    """Computed tokens of the busiest replica / mean; None for a single replica."""


def replica_uses(result: Result, span: Span) -> list[Use]:
    """Return one row per replica, in the result's order."""
    facts = {pool.pool: pool for pool in result.pools}
    requests = _requests(result)
    return [
        _use(replica.name, [replica], int(requests[i]), facts.get(replica.pool), span)
        for i, replica in enumerate(result.replicas)
    ]


def pool_uses(result: Result, span: Span) -> list[Use]:
    """Return one row per pool, in order of first appearance."""
    facts = {pool.pool: pool for pool in result.pools}
    requests = _requests(result)
    names = list(dict.fromkeys(replica.pool for replica in result.replicas))
    rows = []
    for name in names:
        members = [i for i, replica in enumerate(result.replicas) if replica.pool == name]
        replicas = [result.replicas[i] for i in members]
        use = _use(name, replicas, int(requests[members].sum()), facts.get(name), span)
        beside = facts[name].beside_gpus if name in facts else 0
        rows.append(replace(use, gpus=use.gpus + beside))
    return rows


def _requests(result: Result) -> NDArray[np.int64]:
    """Return the requests of each replica: those whose last one it was, and prompts that others answered."""
    served = [result.replica] + ([result.split.columns.prefill_replica] if result.split is not None else [])
    places = np.concatenate(served)
    return np.bincount(places[places >= 0], minlength=len(result.replicas))


def _use(
    name: str, replicas: Sequence[ReplicaResult], requests: int, facts: PoolFacts | None, span: Span
) -> Use:
    steps = sum(r.steps for r in replicas)
    prefill = sum(r.prefill_tokens for r in replicas)
    decode = sum(r.decode_tokens for r in replicas)
    computed = [r.prefill_tokens + r.decode_tokens for r in replicas]
    return Use(
        name=name,
        pool=replicas[0].pool,
        gpus=sum(r.gpus for r in replicas),
        requests=requests,
        steps=steps,
        busy=ratio(sum(r.busy_ns for r in replicas), sum(_open_ns(r, span) for r in replicas)),
        mfu=_flops_use(replicas, facts, span, recomputed=False),
        hfu=_flops_use(replicas, facts, span, recomputed=True),
        mbu=_bytes_use(replicas, facts, span),
        kv_blocks=sum(r.kv_blocks for r in replicas),
        kv_use_mean=kv_use(replicas, span),
        kv_use_peak=max(filter(None, map(_kv_peak, replicas)), default=None),
        prefill_tokens=prefill,
        decode_tokens=decode,
        recomputed_tokens=sum(r.recomputed_tokens for r in replicas),
        preemptions=sum(r.preemptions for r in replicas),
        prefill_tokens_per_step=ratio(prefill, steps),
        decode_tokens_per_step=ratio(decode, steps),
        tokens_per_step=ratio(prefill + decode, steps),
        imbalance=ratio(max(computed) * len(replicas), sum(computed)) if len(replicas) > 1 else None,
    )


def _open_ns(replica: ReplicaResult, span: Span) -> int:
    """Return the ns from the start of the run to its end, or to the end of the replica's last step if later.

    A scheduler that plans ahead works one more step after the last token.
    """
    last_step_ns = int(replica.timeline.end_ns.max(initial=0))
    return max(span.end_ns, last_step_ns) - span.start_ns


def _flops_use(
    replicas: Sequence[ReplicaResult], facts: PoolFacts | None, span: Span, recomputed: bool
) -> float | None:
    if facts is None:
        return None
    flops = sum(_flops(r, facts, recomputed) for r in replicas)
    each = facts.peak_flops * facts.gpus_per_replica + facts.beside_flops / facts.replicas
    return ratio(flops, len(replicas) * span.duration_s * each)


def _flops(replica: ReplicaResult, facts: PoolFacts, recomputed: bool) -> float:
    tokens, pairs = replica.linear_tokens, float(replica.prefill_pairs)
    if not recomputed and replica.prefill_tokens:
        tokens -= replica.recomputed_tokens
        pairs *= 1 - replica.recomputed_tokens / replica.prefill_tokens
    return tokens * facts.flops_per_token + (pairs + replica.decode_pairs) * facts.flops_per_pair


def _bytes_use(replicas: Sequence[ReplicaResult], facts: PoolFacts | None, span: Span) -> float | None:
    if facts is None:
        return None
    needed = sum(_weights_read(r, facts) + contexts_read(r) * facts.kv_bytes_per_token for r in replicas)
    each = facts.hbm_bytes_per_s * facts.gpus_per_replica + facts.beside_bytes_per_s / facts.replicas
    return ratio(needed, len(replicas) * span.duration_s * each)


def contexts_read(replica: ReplicaResult) -> int:
    """Return the sum of contexts that decode steps read; tokens that are verified together share one."""
    return replica.decode_pairs if replica.drafting is None else replica.drafting.context_reads


def _weights_read(replica: ReplicaResult, facts: PoolFacts) -> float:
    """Return the weight bytes that all steps had to read.

    Of the routed experts those that uniform routing touches in expectation, E (1 - (1 - k/E)^tokens), at the
    mean tokens per step of each row of the timeline.
    """
    always = replica.steps * facts.weight_bytes
    if not facts.expert_bytes:
        return always
    line = replica.timeline
    steps = np.maximum(line.steps, 1.0)
    tokens = (line.prefill_tokens + line.decode_tokens) / steps * facts.expert_ranks
    touched = 1.0 - (1.0 - min(1.0, facts.expert_share)) ** tokens
    return always + facts.expert_bytes * float((line.steps * touched).sum())


def _kv_peak(replica: ReplicaResult) -> float | None:
    used = replica.timeline.kv_used_blocks
    return float(used.max()) / replica.kv_blocks if used.size and replica.kv_blocks else None


# How much more a pool could do: with a larger batch when it is full, or of the load when it is not.
#
# Both follow from which part of the time grows with the batch. They are estimates from one run: `gain` tells
# what limits a pool, `times_load` is a cautious bound. A run at the higher load tells exactly.

_STEPS = (1, 1.5, 2, 3, 4, 5, 7, 10)
"""Multiples of the load that are told apart."""
_TOO_HIGH = 1.33
"""Estimates were up to 33 % above what a run carried (docs/metrics.md)."""


class Headroom:
    """One pool and its work."""

    def __init__(
        self,
        facts: PoolFacts,
        use: Use,
        replicas: Sequence[ReplicaResult],
        open_ns: int,
        op_ns: Mapping[str, float],
    ) -> None:
        """`open_ns` is the time of all replicas together, `op_ns` the time by group of kernels."""
        self._facts, self._use, self._replicas, self._open_ns = facts, use, replicas, open_ns
        self._busy = use.busy or 0.0
        self._attention, self._communication = (
            (ratio(*part_of(op_ns, names)) or 0.0) * self._busy for names in (ATTENTION, COMMUNICATION)
        )
        seconds = open_ns / 1e9 * facts.gpus_per_replica
        self._flops = facts.peak_flops * seconds * COMPUTE_EFFICIENCY
        self._bytes = facts.hbm_bytes_per_s * seconds * MEMORY_EFFICIENCY

    def gain(self, larger: float) -> float:
        """Return by how much throughput would grow with `larger` times the batch, as a share.

        Of a step, the part g grows with the batch and the rest does not: r times the batch takes
        1 - g + r g times as long. Of a full batch all attention grows, and all communication.
        """
        attention = self._attention or self._least_attention()
        grows = self._linear() + attention + self._communication
        grows = min(1.0, grows / self._busy) if self._busy else 1.0
        return larger / (1.0 - grows + larger * grows) - 1.0

    def times_load(self) -> float:
        """Return how many times the load fits at least: 1, 1.5, 2, 3, 4, 5, 7, 10, 15, 20 ...

        Of the time u grows with the load and the rest is the same in every step, so f times the load makes
        steps (1 - u) / (1 - f u) times as long and holds f times that many requests, up to the share k of
        blocks or slots that were taken: f = 1 / (u + k (1 - u)). u is what FLOPs and the KV that is read
        need, or what prompts added to the steps if that is more (collectives do).
        """
        prompts = sum(one.prefill_tokens for one in self._replicas)
        tokens = sum(one.linear_tokens for one in self._replicas)
        computed = self._linear() * (ratio(prompts, tokens) or 0.0)
        grows = self._linear() + max(self._prompts() - computed, 0.0) + self._least_attention()
        grows = min(1.0, grows)
        slots = self._facts.max_running
        full = max(self._use.kv_use_mean or 0.0, self._running() / slots if slots else 0.0)
        return bound(1.0 / max(grows + full * (1.0 - grows), 1e-3))

    def _prompts(self) -> float:
        """Return the share of the time that steps took longer for the prompt tokens in them.

        The slope of least squares: time of an interval = a * its steps + b * its prompt tokens.
        """
        lines = [one.timeline for one in self._replicas]
        time = np.concatenate([line.end_ns - line.start_ns for line in lines]).astype(np.float64)
        steps = np.concatenate([line.steps for line in lines]).astype(np.float64)
        tokens = np.concatenate([line.prefill_tokens for line in lines]).astype(np.float64)
        time, tokens = time * (steps > 0), tokens * (steps > 0)
        both = float(steps @ tokens)
        slope = ratio(
            float(steps @ steps) * float(time @ tokens) - both * float(time @ steps),
            float(steps @ steps) * float(tokens @ tokens) - both**2,
        )
        return max(ratio((slope or 0.0) * float(tokens.sum()), self._open_ns) or 0.0, 0.0)

    def _linear(self) -> float:
        """Return the share of the time that matrix products need by their FLOPs."""
        tokens = sum(one.linear_tokens for one in self._replicas)
        return ratio(tokens * self._facts.flops_per_token, self._flops) or 0.0

    def _least_attention(self) -> float:
        """Return the share of the time that attention needs by its FLOPs and the KV that it reads."""
        pairs = sum(one.prefill_pairs + one.decode_pairs for one in self._replicas)
        read = sum(contexts_read(one) for one in self._replicas)
        compute = ratio(pairs * self._facts.flops_per_pair, self._flops) or 0.0
        return compute + (ratio(read * self._facts.kv_bytes_per_token, self._bytes) or 0.0)

    def _running(self) -> float:
        """Return the requests that ran on a replica, mean over the time and the replicas."""
        lines = [one.timeline for one in self._replicas]
        held_ns = sum(float((line.running * (line.end_ns - line.start_ns)).sum()) for line in lines)
        return ratio(held_ns, self._open_ns) or 0.0


def bound(estimate: float) -> float:
    """Return the highest multiple of the load that is told apart and surely below the truth; 1 at least."""
    surely = max(estimate / _TOO_HIGH, 1.0)
    ten = 10.0 ** math.floor(math.log10(surely))
    return ten * max(step for step in _STEPS if step * ten <= surely)


def room_words(times: float) -> str:
    """Return how much more load fits; an SLO may be missed before."""
    return f"at least {times:g} times this load fits before a queue grows"


def part_of(op_ns: Mapping[str, float], names: Collection[str]) -> tuple[float, float]:
    """Return the time of some groups of kernels, and of all."""
    return sum(ns for name, ns in op_ns.items() if name in names), sum(op_ns.values())
