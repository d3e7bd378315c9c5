"""How much more a pool could do: with a larger batch when it is full, or of the load when it is not.

Both follow from which part of the time grows with the batch. They are estimates from one run: `gain` tells
what limits a pool, `times_load` is rounded to what it is worth. A run at the higher load tells exactly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from simserve.core import PoolFacts, ReplicaResult
from simserve.core.efficiency import COMPUTE_EFFICIENCY, MEMORY_EFFICIENCY
from simserve.metrics.utilisation import Use, contexts_read
from simserve.metrics.window import ratio

COMMUNICATION = frozenset({"collectives", "dispatch", "combine"})
ATTENTION = frozenset({"attention, decode steps", "attention, steps with prompts"})
"""Groups of `Summary.operations` (see `latency.op_times`, `latency.lockstep_books`)."""
_STEPS = (1, 2, 3, 4, 5, 7, 10)
"""Multiples of the load that are told apart: estimates were 24 % below to 33 % above what a run carried."""


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
        """Return how many times the load fits, rounded to 1, 2, 3, 4, 5, 7, 10, 20 ...

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
        return rounded(1.0 / max(grows + full * (1.0 - grows), 1e-3))

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


def rounded(times: float) -> float:
    """Return the multiple of the load nearest to `times` that is told apart from its neighbours."""
    ten = 10.0 ** math.floor(math.log10(times))
    return ten * min(_STEPS, key=lambda step: abs(math.log(times / ten / step)))


def part_of(op_ns: Mapping[str, float], names: frozenset[str]) -> tuple[float, float]:
    """Return the time of some groups of kernels, and of all."""
    return sum(ns for name, ns in op_ns.items() if name in names), sum(op_ns.values())
