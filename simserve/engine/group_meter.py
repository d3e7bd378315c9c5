"""Totals of a group of ranks that step together, and the gaps between tokens that its steps make."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simserve.core import GroupResult
from simserve.engine.gaps import GapRecorder
from simserve.engine.spec import GroupSpec
from simserve.experts.maxima import RankMaximum
from simserve.experts.state import ExpertState
from simserve.latency.lockstep_books import PHASES, StepNote

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
