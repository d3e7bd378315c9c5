"""The latency law of `plain_latency` for ranks that step together, plus a term by all their tokens."""

from __future__ import annotations

import numpy as np

from simserve.latency.lockstep_totals import StepNote
from tests.sim.plain_latency import PlainLatency


class PlainLockstep:
    """step = slowest rank by `PlainLatency` + per_group x tokens of all ranks."""

    stages = 1

    def __init__(self, plain: PlainLatency, per_group: int = 0) -> None:
        self.plain = plain
        self.per_group = per_group
        self.booked_ns = 0.0

    def decode_run_ns(self, sequences, contexts, maximum):
        plain, per_group = self.plain, self.per_group
        each = plain.fixed + plain.per_token * sequences[:, None] + plain.per_context * contexts
        durations = (each.max(axis=0) + per_group * int(sequences.sum())).astype(np.int64)
        return durations, self._note(len(durations), int(sequences.sum()))

    def mixed_step_ns(self, works, sequences, contexts, maximum):
        tokens = int(sequences.sum())
        slowest = 0
        for work in works:
            slowest = max(slowest, self.plain.step_ns(work.decodes, work.decode_context, work.chunks))
            tokens += work.decodes + sum(chunk.tokens for chunk in work.chunks)
        for n, context in zip(sequences.tolist(), contexts.tolist(), strict=True):
            slowest = max(slowest, self.plain.decode_ns(n, context))
        return slowest + self.per_group * tokens, self._note(1, tokens)

    def _note(self, steps, tokens):
        return StepNote(
            np.zeros(steps, np.int64), np.zeros(steps, np.int64), (0, 0, 0, 0), np.zeros(4), tokens
        )

    def book(self, note, steps, total_ns):
        self.booked_ns += total_ns

    def step_provenance(self):
        return {"analytic": self.booked_ns}
