"""Totals of one replica."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simserve.core import Batch
from simserve.core.verify import VerifyBatch
from simserve.engine.timeline import TimelineRecorder
from simserve.policy.base import Policy


class Meter:
    """Counts work as it is booked; everything is an integer, so the order of booking cannot matter."""

    __slots__ = (
        "_arrived",
        "_arrived_ns",
        "busy_ns",
        "decode_pairs",
        "decode_reads",
        "preemptions",
        "prefill_pairs",
        "prefill_tokens",
        "recomputed_tokens",
        "timeline",
        "wakeups",
    )

    def __init__(self) -> None:
        self.wakeups = 0
        self.busy_ns = 0
        self.prefill_tokens = 0
        self.recomputed_tokens = 0
        self.preemptions = 0
        self.prefill_pairs = 0
        self.decode_pairs = 0
        self.decode_reads = 0
        """Contexts read by steps that verify drafts: all tokens of a sequence share one reading."""
        self.timeline = TimelineRecorder()
        self._arrived = 0
        self._arrived_ns = 0

    def arrive(self, now_ns: int) -> None:
        """Note that a request joined the queue: it does not count from the start of the present interval."""
        self._arrived += 1
        self._arrived_ns += now_ns

    def run(self, start_ns: int, end_ns: int, policy: Policy, batch: Batch, live: int, steps: int) -> None:
        """Count `steps` steps of `batch`; `live` of its sequences show a token in each, the rest pads."""
        self.busy_ns += end_ns - start_ns
        decodes, tokens = batch.decodes, live * steps
        if live == decodes:
            self.decode_pairs += steps * batch.decode_context + tokens * (steps - 1) // 2
        else:
            pairs = steps * batch.decode_context + decodes * steps * (steps - 1) // 2
            self.decode_pairs += pairs * live // decodes
        waiting = policy.waiting
        if self._arrived:
            waiting -= self._absent(start_ns, end_ns)
        prompt_tokens = batch.prompt_tokens if batch.chunks else 0
        self.timeline.add(
            start_ns, end_ns, policy.running, waiting, policy.kv_used_blocks, prompt_tokens, tokens, steps
        )

    def verified(
        self, start_ns: int, end_ns: int, policy: Policy, batch: VerifyBatch, tokens: NDArray[np.int64]
    ) -> None:
        """Count steps that verified drafts and showed so many tokens each (int64[steps])."""
        steps = len(tokens)
        contexts = batch.context_sums[:steps]
        self.busy_ns += end_ns - start_ns
        self.decode_reads += int(contexts.sum())
        self.decode_pairs += int((contexts * tokens // max(1, batch.decodes)).sum())
        waiting = policy.waiting
        if self._arrived:
            waiting -= self._absent(start_ns, end_ns)
        self.timeline.add(
            start_ns,
            end_ns,
            policy.running,
            waiting,
            policy.kv_used_blocks,
            batch.prompt_tokens,
            int(tokens.sum()),
            steps,
        )

    def idle(self, start_ns: int, end_ns: int, policy: Policy) -> None:
        """Note an interval without steps: the policy kept requests waiting for a time of its choice."""
        waiting = policy.waiting - self._absent(start_ns, end_ns)
        self.timeline.add(start_ns, end_ns, policy.running, waiting, policy.kv_used_blocks, 0, 0, 0)

    def _absent(self, start_ns: int, end_ns: int) -> float:
        """Return how many of those that wait now were not there yet, averaged over the interval."""
        absent = (self._arrived_ns - self._arrived * start_ns) / (end_ns - start_ns)
        self._arrived = self._arrived_ns = 0
        return absent

    def prefill(self, tokens: int, cached: int) -> None:
        """Count `tokens` prompt tokens of one request on top of `cached` ones."""
        self.prefill_tokens += tokens
        self.prefill_pairs += tokens * cached + tokens * (tokens + 1) // 2
