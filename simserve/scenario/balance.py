"""The balance formula: how many prefill and decode replicas are equally busy, as a first guess of the ratio.

Prefill replicas are busy for rate x (time of a mean prompt) / x of the time, decode replicas for rate x (mean
answer) x (time of a step) / (y x batch), the batch being the largest whose step keeps the limit on the time
per token and whose KV fits. Domain page, section 6. Queueing, bursts and transfers are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from simserve.core import Trace
from simserve.latency import TableLatency
from simserve.scenario.kv_tiers import recompute_time
from simserve.scenario.pool import BuiltPool
from simserve.scenario.ratio import name_of, splits_of
from simserve.units import NS_PER_MS, NS_PER_S

DEFAULT_TPOT_MS = 50.0
"""Limit on a decode step where the scenario names none [assumption]."""


@dataclass(frozen=True)
class Balance:
    """Replicas that are busy all the time, of each side."""

    prefill: float
    decode: float
    batch: int
    """Requests of one decode replica at once."""

    def busiest(self, split: tuple[int, int]) -> float:
        """Return the share of time in which the busier side of a split works (above 1: it falls behind)."""
        return max(self.prefill / split[0], self.decode / split[1])


def balance(trace: Trace, prefill: BuiltPool, decode: BuiltPool, tpot_ms: float | None) -> Balance | None:
    """Return how much each side has to do; None if the trace has no rate, or ranks step together."""
    if not isinstance(prefill.latency, TableLatency) or not isinstance(decode.latency, TableLatency):
        return None
    span_ns = int(trace.arrival_ns[-1] - trace.arrival_ns[0])
    if len(trace) < 2 or not span_ns:
        return None
    rate = (len(trace) - 1) / (span_ns / NS_PER_S)
    prompt, answer = float(trace.prompt_tokens.mean()), float(trace.output_tokens.mean())
    whole = recompute_time(prefill.latency, prefill.engine.tokens_per_step(1 << 40))
    prompt_s = whole(max(1, round(prompt)), 0) / NS_PER_S
    batch, token_s = _batch(decode, decode.latency, prompt + answer / 2, tpot_ms or DEFAULT_TPOT_MS)
    return Balance(rate * prompt_s, rate * answer * token_s / batch, batch)


def _batch(decode: BuiltPool, latency: TableLatency, context: float, tpot_ms: float) -> tuple[int, float]:
    """Return the largest batch (a power of two) that is fast enough and fits, and its seconds per token.

    A step makes one token of each sequence, or with speculation so many as are accepted in the mean.
    """
    most = min(decode.engine.sequences, int(decode.ledger.kv_tokens / context))
    made = decode.speculation.acceptance.mean_tokens if decode.speculation is not None else 1.0
    batch, found = 1, (1, _step_s(latency, 1, context) / made)
    while batch <= most:
        token_s = _step_s(latency, batch, context) / made
        if token_s * NS_PER_S > tpot_ms * NS_PER_MS:
            break
        found = (batch, token_s)
        batch *= 2
    return found


def _step_s(latency: TableLatency, batch: int, context: float) -> float:
    return latency.quietly_step_ns(batch, round(batch * context), []) / NS_PER_S


def balance_words(found: Balance, prefill: BuiltPool, decode: BuiltPool) -> str:
    """Return what the formula says of a deployment, in a sentence."""
    sizes = (prefill.facts.gpus_per_replica, decode.facts.gpus_per_replica)
    own = (prefill.spec.replicas, decode.spec.replicas)
    total = own[0] * sizes[0] + own[1] * sizes[1]
    best = min(splits_of(total, *sizes) or [own], key=found.busiest)
    return (
        f"balance formula: {found.prefill:.2f} prefill and {found.decode:.2f} decode replicas would be busy "
        f"all the time ({found.batch} requests at once on each decode replica), so of {total} GPUs "
        f"{name_of(best)} is most even; queueing and bursts are left out"
    )
