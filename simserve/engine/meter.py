"""Totals of one replica."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from simserve.core import Batch, WaitReason
from simserve.core.verify import VerifyBatch
from simserve.engine.lookahead import Lookahead
from simserve.engine.timeline import MOST_BYTES, TimelineRecorder, pack
from simserve.policy.base import Policy

_FAILED = -1
"""Stands among arrivals for a request that failed while it waited."""


class Meter:
    """Counts work as it is booked; everything is an integer, so the order of booking cannot matter."""

    __slots__ = (
        "_arrivals_ns",
        "arrive",
        "busy_ns",
        "decode_pairs",
        "decode_reads",
        "lookahead",
        "preemptions",
        "prefill_pairs",
        "prefill_tokens",
        "recomputed_tokens",
        "timeline",
        "waited_ns",
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
        self.waited_ns = [0] * len(WaitReason)
        """Time in which somebody waited, by what the head of the queue waited for."""
        self.lookahead: Lookahead | None = None
        """Arrivals that the policy has not been told of, if it plans ahead."""
        self._arrivals_ns: list[int] = []
        """Arrivals since the last interval: they do not count from its start."""
        self.arrive: Callable[[int], None] = self._arrivals_ns.append
        """Called with the time at which a request joined the queue."""

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
        if self._arrivals_ns:
            waiting -= self._absent(start_ns, end_ns, policy, waiting)
        elif waiting:
            self.waited_ns[policy.kept_out] += end_ns - start_ns
        prompt_tokens = batch.prompt_tokens if batch.chunks else 0
        rows = self.timeline.rows  # `TimelineRecorder.add` without a call
        rows += pack(
            start_ns, end_ns, policy.running, waiting, policy.kv_used_blocks, prompt_tokens, tokens, steps
        )
        if len(rows) >= MOST_BYTES:
            self.timeline.merge()

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
        if self._arrivals_ns:
            waiting -= self._absent(start_ns, end_ns, policy, waiting)
        elif waiting:
            self.waited_ns[policy.kept_out] += end_ns - start_ns
        prompt_tokens, shown = batch.prompt_tokens, int(tokens.sum())
        self.timeline.add(
            start_ns, end_ns, policy.running, waiting, policy.kv_used_blocks, prompt_tokens, shown, steps
        )

    def idle(self, start_ns: int, end_ns: int, policy: Policy) -> None:
        """Note an interval without steps: the policy kept requests waiting for a time of its choice."""
        waiting = policy.waiting
        if self._arrivals_ns:
            waiting -= self._absent(start_ns, end_ns, policy, waiting)
        elif waiting:
            self.waited_ns[policy.kept_out] += end_ns - start_ns
        self.timeline.add(start_ns, end_ns, policy.running, waiting, policy.kv_used_blocks, 0, 0, 0)

    def fail(self) -> None:
        """Note that one failed that waited from the start: it counts as waiting until the interval ends."""
        self._arrivals_ns.insert(0, _FAILED)

    def rest(self, start_ns: int, end_ns: int, policy: Policy) -> None:
        """Note an interval in which nothing could be done: requests may have waited for news."""
        first_ns = self._first_wait_ns(start_ns, end_ns, policy)
        if first_ns < end_ns:
            self.waited_ns[policy.kept_out] += end_ns - first_ns
        self._arrivals_ns.clear()  # they wait from the start of the next interval

    def _absent(self, start_ns: int, end_ns: int, policy: Policy, waiting: int) -> float:
        """Return how many of the `waiting` were not there yet, averaged over the interval.

        Those that came and that the policy has not been told of are not among the `waiting`: they count back.
        Counts the interval as waited in, from its start or from the first arrival on.
        """
        arrivals_ns = self._arrivals_ns
        count, first_ns = len(arrivals_ns), arrivals_ns[0]
        if first_ns <= start_ns or self.lookahead is not None:
            first_ns = self._first_wait_ns(start_ns, end_ns, policy)
            count = len(arrivals_ns)
        elif waiting > count:
            first_ns = start_ns
        self.waited_ns[policy.kept_out] += end_ns - first_ns
        absent = (sum(arrivals_ns) - count * start_ns) / (end_ns - start_ns)
        arrivals_ns.clear()
        return absent if self.lookahead is None else absent - self.lookahead.held

    def _first_wait_ns(self, start_ns: int, end_ns: int, policy: Policy) -> int:
        """Return since when somebody has waited in the interval; its end if nobody has."""
        arrivals_ns = self._arrivals_ns
        if arrivals_ns and arrivals_ns[0] == _FAILED:
            del arrivals_ns[: bisect_right(arrivals_ns, _FAILED)]
            return start_ns
        waiting = policy.waiting if self.lookahead is None else policy.waiting + self.lookahead.held
        seen = bisect_right(arrivals_ns, start_ns)
        if waiting > len(arrivals_ns) - seen:
            return start_ns
        return arrivals_ns[seen] if seen < len(arrivals_ns) else end_ns

    def prefill(self, tokens: int, cached: int) -> None:
        """Count `tokens` prompt tokens of one request on top of `cached` ones."""
        self.prefill_tokens += tokens
        self.prefill_pairs += tokens * cached + tokens * (tokens + 1) // 2
