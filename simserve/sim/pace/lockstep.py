"""Ranks that step together: attention data parallelism, with experts spread over all ranks.

Follows vLLM's data-parallel engine cores and SGLang's DP-attention: every rank has its own queue, KV pool and
batch, every rank joins every step, and the step lasts as long as the slowest one. A rank without work runs a
dummy batch; a prompt on one rank slows the decodes of all. One SimPy process serves the group. Between two
boundaries at which some rank must decide anew, the steps of all are one event; a rank that goes on unchanged
costs nothing at such a boundary.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from simpy.events import Event

from simserve.core import GroupResult
from simserve.experts.state import ExpertState
from simserve.latency.lockstep import RankWork
from simserve.latency.lockstep_totals import StepNote
from simserve.sim.clock import Boundary, Clock, Front, WakeUp, order_of
from simserve.sim.meters import GroupMeter
from simserve.sim.pace.rank import NEVER, Rank
from simserve.sim.recorder import GapRecorder
from simserve.sim.replica import Replica
from simserve.sim.specs import GroupSpec

Int64 = NDArray[np.int64]
_MOST_STEPS = 256
"""Steps planned at once: planning costs ranks times steps, and arrivals cut plans short."""


class _Steps(NamedTuple):
    """Steps in progress."""

    start_ns: int
    first: int
    """Number of the first."""
    ends_ns: list[int]
    """0, and when each step ends, from the start."""
    durations_ns: Int64
    note: StepNote

    @property
    def steps(self) -> int:
        return len(self.ends_ns) - 1


class LockstepGroup:
    """The process of one group."""

    def __init__(
        self, env: Clock, front: Front, spec: GroupSpec, rank: int, ranks: list[Rank], gaps: GapRecorder
    ) -> None:
        """`rank` is the place of the group's boundaries among those of all replicas of an instant."""
        self.env = env
        self.spec = spec
        self.rank = rank
        self.order = order_of(rank)
        self.ranks = ranks
        self.latency = spec.latency
        self._speculates = ranks[0].spec.acceptance is not None
        self.step = 0
        """Steps that are over."""
        self.experts = ExpertState(spec.experts) if spec.experts is not None else None
        self.meter = GroupMeter(spec, gaps, self.experts)
        self._front = front
        size = len(ranks)
        self._end_step = np.full(size, NEVER, np.int64)
        """Step before which each rank must decide."""
        self._decodes = np.zeros(size, np.int64)
        self._context = np.zeros(size, np.int64)
        """Mean context of each rank's decodes, less the step at which its run began."""
        self._wake_ns = np.full(size, NEVER, np.int64)
        self._due: set[int] = set(range(size))
        """Ranks that decide at the next boundary."""
        self._chunked: set[int] = set()
        self._steps: _Steps | None = None
        self._boundary: Boundary | None = None
        self._idle: WakeUp | None = None
        for place, member in enumerate(ranks):
            member.join(self, place)
        env.process(self.serve())

    def serve(self) -> Generator[Event, None, None]:
        """Life of the group: decide, let the steps pass, book the outcome."""
        while True:
            yield from self._change_experts()
            self._decide(self.env.now)
            steps = self._steps = self._plan(self.env.now)
            if steps is None:
                yield from self._wait()
                self._woke()
            else:
                self._boundary = Boundary(self.env, self.order, steps.ends_ns[-1])
                yield self._boundary
                now_ns = self._woke()
                self._boundary = None
                self._book(now_ns)

    # -- asked by ranks ---------------------------------------------------------------------------------

    def steps_begun(self, time_ns: int, passed: bool) -> int:
        """Return the steps up to the one in flight; one that ends just then is over only if `passed`."""
        steps = self._steps
        if steps is None:
            return self.step
        target, ends = time_ns - steps.start_ns, steps.ends_ns
        index = bisect_left(ends, target, 1, len(ends) - 1)
        if passed and ends[index] == target:
            index += 1
        return steps.first + min(index, steps.steps)

    def steps_over(self, time_ns: int, passed: bool) -> int:
        """Return the steps that are over; one that ends just then counts only if `passed`."""
        steps, begun = self._steps, self.steps_begun(time_ns, passed)
        if steps is None:
            return begun
        ended = steps.start_ns + steps.ends_ns[begun - steps.first] == time_ns
        return begun if passed and ended else begun - 1

    def wake(self, rank: Rank) -> None:
        """Ask a rank without work at the end of the step in flight; at once if nobody has work."""
        rank._idle = None
        self._due.add(rank.place)
        now_ns = self.env.now
        if self._idle is not None:
            self._idle.fire(self.order)
            self._idle = None
        elif self._boundary is not None:
            if self._steps is None:
                self._bring_forward(0)
            else:
                passed = self._front.passed(now_ns, self.rank)
                self._cut_at(self.steps_begun(now_ns, passed))

    def cut(self, rank: Rank, step: int) -> None:
        """Let a rank decide before `step`, if that comes sooner than it would."""
        if step < self._end_step[rank.place]:
            self._end_step[rank.place] = step
            if self._steps is not None:
                self._cut_at(step)

    def _cut_at(self, step: int) -> None:
        """Shorten the steps in progress so that the boundary before `step` is their last."""
        steps = self._steps
        assert steps is not None
        count = step - steps.first
        if count < steps.steps:
            self._steps = steps._replace(ends_ns=steps.ends_ns[: count + 1])
            self._bring_forward(steps.start_ns + steps.ends_ns[count] - self.env.now)

    def _bring_forward(self, delay_ns: int) -> None:
        old = self._boundary
        assert old is not None
        self._boundary = Boundary(self.env, self.order, delay_ns)
        self._boundary.callbacks, old.callbacks = old.callbacks, []

    # -- parts of the process ---------------------------------------------------------------------------

    def _woke(self) -> int:
        """Count a wake-up, mark this instant's boundary as reached, and return the time."""
        now_ns = self.env.now
        for rank in self.ranks:
            if rank.view is None:
                break
            rank.view.catch_up(now_ns)
        self._front.reach(now_ns, self.rank)
        return now_ns

    def _change_experts(self) -> Generator[Event, None, None]:
        """Bring popularity and placement up to date; if that stops the engine, everybody waits."""
        experts = self.experts
        if experts is None:
            return
        now_ns = self.env.now
        epoch, shares = experts.epoch, experts.maximum()
        wait_ns = experts.advance(self.step, now_ns)
        if experts.epoch != epoch:
            self.meter.close_epoch(shares)
        if wait_ns and any(rank.outputs.answers for rank in self.ranks):
            for place, rank in enumerate(self.ranks):
                if rank.batch is not None:
                    self._finish(place, now_ns)
                rank.pause(now_ns)
            self._steps = None
            yield Boundary(self.env, self.order, wait_ns)
            self._woke()

    def _decide(self, now_ns: int) -> None:
        """Ask the ranks that are due, in order."""
        while self._due:
            due = sorted(self._due)
            self._due.clear()
            for place in due:
                rank = self.ranks[place]
                rank.finish(now_ns, self.step)
                end = rank.decide(now_ns, self.step)
                batch = rank.batch
                self._end_step[place] = end
                self._wake_ns[place] = rank.wake_ns
                if batch is None:
                    self._decodes[place] = 0
                    continue
                self._decodes[place] = batch.decodes
                if batch.decodes:
                    self._context[place] = batch.decode_context // batch.decodes - self.step
                if batch.chunks:
                    self._chunked.add(place)
                else:
                    self.meter.enter(*rank.rhythm)

    def _plan(self, now_ns: int) -> _Steps | None:
        """Return the steps that no rank can change; None if nobody has work."""
        first = int(self._end_step.min())
        if first == NEVER:
            return None
        maximum = self.experts.maximum() if self.experts is not None else None
        if self._chunked:
            works = [self._work(place) for place in sorted(self._chunked)]
            others = np.flatnonzero(self._decodes)
            others = others[[place not in self._chunked for place in others.tolist()]]
            sequences = self._decodes[others]
            contexts = self._contexts(others, 1)[:, 0]
            step_ns, note = self.latency.mixed_step_ns(works, sequences, contexts, maximum)
            durations_ns = np.array([step_ns], np.int64)
        else:
            steps = min(first - self.step, _MOST_STEPS)
            if self.experts is not None and self.experts.next_step is not None:
                steps = min(steps, self.experts.next_step - self.step)
            active = np.flatnonzero(self._decodes)
            contexts = self._contexts(active, steps)
            sequences = self._decodes[active]
            durations_ns, note = self.latency.decode_run_ns(sequences, contexts, maximum)
        ends_ns = [0, *np.cumsum(durations_ns).tolist()]
        until_ns = int(self._wake_ns.min())
        if self.experts is not None and self.experts.next_ns is not None:
            until_ns = min(until_ns, self.experts.next_ns)
        if until_ns < now_ns + ends_ns[-1]:  # no step begins at or after that time
            del ends_ns[bisect_left(ends_ns, until_ns - now_ns, 1) + 1 :]
        return _Steps(now_ns, self.step, ends_ns, durations_ns, note)

    def _contexts(self, places: Int64, steps: int) -> Int64:
        """Return the mean contexts of ranks (int64[r]) in each of the next steps, int64[r, steps].

        They grow by one, or by what the verifications accept.
        """
        if self._speculates:
            rows = [self.ranks[place].contexts(self.step, steps) for place in places.tolist()]
            return np.array(rows, np.int64).reshape(len(rows), steps)
        return self._context[places][:, None] + np.arange(self.step, self.step + steps)

    def _work(self, place: int) -> RankWork:
        batch = self.ranks[place].batch
        assert batch is not None
        return RankWork(batch.decodes, batch.decode_context, batch.chunks)

    def _book(self, now_ns: int) -> None:
        """Book the steps that passed, and the ranks whose runs ended with them."""
        steps = self._steps
        assert steps is not None
        self._steps = None
        self.step = steps.first + steps.steps
        self.meter.steps(steps.durations_ns[: steps.steps], steps.note)
        self._due |= set(np.flatnonzero(self._wake_ns <= now_ns).tolist())
        while True:  # an answer that ends may bring an arrival to a rank whose run goes on
            ended = np.flatnonzero(self._end_step <= self.step)
            waking = [place for place in self._due if self._end_step[place] != NEVER]
            if not len(ended) and not waking:
                return
            for place in sorted({*ended.tolist(), *waking}):
                self._finish(place, now_ns)

    def _finish(self, place: int, now_ns: int) -> None:
        rank = self.ranks[place]
        self._end_step[place] = NEVER
        self._due.add(place)
        if place in self._chunked:
            self._chunked.discard(place)
        elif rank.batch is not None:
            self.meter.leave(*rank.rhythm)
        rank.finish(now_ns, self.step)

    def _wait(self) -> Generator[Event, None, None]:
        """Sleep until an arrival, or until a policy wants to look again."""
        until_ns = int(self._wake_ns.min())
        if until_ns == NEVER:
            self._idle = WakeUp(self.env)
            yield self._idle
            return
        self._boundary = Boundary(self.env, self.order, until_ns - self.env.now)
        yield self._boundary
        self._boundary = None
        self._due |= set(np.flatnonzero(self._wake_ns <= self.env.now).tolist())

    def result(self) -> GroupResult:
        """Return the totals."""
        return self.meter.result(self.step, len(self.ranks))


# Which ranks step together.


def build_groups(
    env: Clock, front: Front, replicas: Sequence[Replica], gaps: GapRecorder
) -> list[LockstepGroup]:
    """Return the groups that the replicas form."""
    members: dict[GroupSpec, list[Rank]] = {}
    for replica in replicas:
        if isinstance(replica, Rank) and replica.spec.group is not None:
            members.setdefault(replica.spec.group, []).append(replica)
    return [LockstepGroup(env, front, spec, ranks[0].rank, ranks, gaps) for spec, ranks in members.items()]
