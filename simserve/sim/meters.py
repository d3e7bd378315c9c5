"""Totals of a group of ranks that step together, and the gaps between tokens that its steps make."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from simserve.core import Batch, GroupResult, WaitReason
from simserve.core.batch import VerifyBatch
from simserve.engines.base import Policy
from simserve.experts.rank_load import RankMaximum
from simserve.experts.state import ExpertState
from simserve.latency.lockstep_totals import PHASES, StepNote
from simserve.sim.recorder import MOST_BYTES, GapRecorder, TimelineRecorder, pack
from simserve.sim.specs import GroupSpec
from simserve.sim.step_times import Lookahead

# Totals of one replica.

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


Int64 = NDArray[np.int64]
_BUFFERED = 1 << 13


class GroupMeter:
    """Counts steps as they are booked."""

    def __init__(self, spec: GroupSpec, gaps: GapRecorder, experts: ExpertState | None) -> None:
        """`gaps` receives the gaps of answers that were shown a token at both ends of a step."""
        self._spec = spec
        self._gaps = gaps
        self._experts = experts
        self._live = self._steady = 0
        self._lost = self._lost_steady = 0
        self._buffer: list[tuple[Int64, int, int]] = []
        self._buffered = 0
        self._phases_ns = [0] * len(PHASES)
        self._busy_ns = 0
        self._epoch_steps = self._epoch_tokens = 0
        self._gamma_sum: NDArray[np.float64] | None = None
        self._gamma_steps = 0

    def enter(self, live: int, steady: int) -> None:
        """A rank begins a run in which so many answers are shown a token after every step."""
        self._live += live
        self._steady += steady

    def leave(self, live: int, steady: int) -> None:
        """The run ends."""
        self._live -= live
        self._steady -= steady

    def lose_client(self, steady: bool) -> None:
        """The client of an answer gave up: it is shown nothing by the step in flight, the last of a block."""
        self._lost += 1
        self._lost_steady += steady

    def steps(self, durations_ns: Int64, note: StepNote) -> None:
        """Count steps that are over."""
        count, total_ns = len(durations_ns), int(durations_ns.sum())
        self._spec.latency.book(note, count, total_ns)
        self._busy_ns += total_ns
        self._phases_ns[0] += int(note.slowest_ns[:count].sum())
        for phase, ns in enumerate(note.group_ns, 1):
            self._phases_ns[phase] += ns * count
        self._epoch_steps += count
        self._epoch_tokens += note.group_tokens * count
        if self._lost:
            self._show(durations_ns[:-1])
            self._live, self._steady = self._live - self._lost, self._steady - self._lost_steady
            self._lost = self._lost_steady = 0
            durations_ns = durations_ns[-1:]
        self._show(durations_ns)

    def _show(self, durations_ns: Int64) -> None:
        """Keep the gaps of steps for the histogram."""
        if self._live and len(durations_ns):
            self._buffer.append((durations_ns, self._live, self._steady))
            self._buffered += len(durations_ns)
            if self._buffered >= _BUFFERED:
                self._flush()

    def close_epoch(self, maximum: RankMaximum) -> None:
        """Popularity or placement change: note how uneven ranks were since the last change."""
        if self._epoch_steps:
            gamma = maximum.gamma(self._epoch_tokens // self._epoch_steps)
            weighted = gamma * self._epoch_steps
            self._gamma_sum = weighted if self._gamma_sum is None else self._gamma_sum + weighted
            self._gamma_steps += self._epoch_steps
        self._epoch_steps = self._epoch_tokens = 0

    def result(self, steps: int, ranks: int) -> GroupResult:
        """Return the totals after `steps` steps."""
        self._flush()
        experts = self._experts
        if experts is not None:
            self.close_epoch(experts.maximum())
        gamma = () if self._gamma_sum is None else tuple((self._gamma_sum / self._gamma_steps).tolist())
        return GroupResult(
            name=self._spec.name,
            pool=self._spec.pool,
            ranks=ranks,
            steps=steps,
            busy_ns=self._busy_ns,
            phases_ns=dict(zip(PHASES, self._phases_ns, strict=True)),
            gamma=gamma,
            rebalances=experts.rebalances if experts else 0,
            skipped_rebalances=experts.skipped if experts else 0,
            moved_bytes=experts.moved_bytes if experts else 0,
            blocked_ns=experts.blocked_ns if experts else 0,
            ffn_gpus=self._spec.ffn_gpus,
        )

    def _flush(self) -> None:
        """Hand the buffered steps to the histogram."""
        if self._buffer:
            gaps = np.concatenate([durations for durations, _, _ in self._buffer])
            sizes = [len(durations) for durations, _, _ in self._buffer]
            counts = np.array([row[1:] for row in self._buffer], np.int64)
            live, steady = np.repeat(counts, sizes, axis=0).T
            self._gaps.add_many(gaps, live, steady)
        self._buffer, self._buffered = [], 0
