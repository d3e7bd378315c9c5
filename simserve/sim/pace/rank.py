"""One attention rank of a group whose ranks step together (see `lockstep`).

To routers and outputs it is a replica of its own: queue, KV pool, batch and answers. But it has no clock: it
decides when the group asks, and its runs are counted in steps of the group.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from simpy.events import Event, EventPriority

from simserve.core import Batch, Request, Wait
from simserve.core.batch import VerifyBatch
from simserve.sim.clock import Boundary, WakeUp, order_of
from simserve.sim.decode_batch import NOT_DECODING, Run
from simserve.sim.replica import Replica
from simserve.sim.step_times import DecodePage

if TYPE_CHECKING:
    from simserve.sim.pace.lockstep import LockstepGroup


NEVER = 1 << 62


class _NoPage(DecodePage):
    """Stands for the page of a run whose gaps the group counts."""

    def __init__(self) -> None: ...

    def count(self, offset: int, steps: int, tokens: int, steady_tokens: int) -> None:
        """Count nothing."""


_GROUP_COUNTS = _NoPage()


class _Idle(WakeUp):
    """The wait of a rank without work: an arrival makes the group ask it at the next boundary."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank

    def fire(self, order: EventPriority) -> None:
        """Tell the group."""
        self._rank.group.wake(self._rank)


class _Sleep(Boundary):
    """Stands for the end of the rank's run: that is the group's to bring forward."""

    def __init__(self) -> None: ...


_CAN_BE_CUT = _Sleep()


class Rank(Replica):
    """A replica that steps when its group does."""

    group: LockstepGroup
    place: int
    """Number within the group."""
    batch: Batch | None = None
    """What it computes in the present steps; None: nothing (the engine runs a dummy batch)."""
    start_step = 0
    """Step of the group with which the present batch began."""
    start_ns = 0
    wake_ns = NEVER
    """When the policy wants to be asked again, at the latest."""
    _rest_ns = NEVER
    """Since when it has had no batch."""
    _resting = False
    """True while the policy keeps requests waiting for a time of its choice."""
    rhythm = (0, 0)
    """Answers shown a token in each step of the present run (all, steady) whose gaps the group counts."""

    def join(self, group: LockstepGroup, place: int) -> None:
        """Become number `place` of the group: boundaries of all its ranks are one."""
        self.group = group
        self.place = place
        self.order = order_of(group.rank)

    def serve(self) -> Generator[Event, None, None]:
        """Do nothing: the group is the process."""
        return
        yield

    # -- asked by the group ----------------------------------------------------------------------------

    def decide(self, now_ns: int, step: int) -> int:
        """Let the policy decide at the boundary before `step`; return the step before which to ask again."""
        outputs, policy, lookahead = self.outputs, self.policy, self._lookahead
        self.batch, self._idle, self._sleep, self._run_end, self.wake_ns = None, None, None, None, NEVER
        while True:
            if self._given_up:
                self._given_up = [request for request in self._given_up if not outputs.drop(request)]
            decision = policy.next_batch(now_ns)
            if lookahead is not None and lookahead.decided(policy, isinstance(decision, Batch)):
                continue
            if isinstance(decision, Wait):
                self._rest(decision, now_ns)
                return NEVER
            if decision.chunks or decision.decodes:
                break
            outputs.empty(decision, now_ns)
        if decision.chunks or decision.preempted or decision.stalled:
            outputs.begin(decision, now_ns)
        self.batch, self.start_step, self.start_ns = decision, step, now_ns
        steps = 1 if decision.chunks else self._steps_alike(decision, now_ns)
        if steps > 1:
            self._run_end = _CAN_BE_CUT
            if not decision.sealed:
                self._sleep = _CAN_BE_CUT
        return step + steps

    def finish(self, now_ns: int, step: int) -> None:
        """Book what was computed up to the boundary before `step`."""
        batch, steps = self.batch, step - self.start_step
        if batch is None:
            if now_ns > self._rest_ns:
                note = self.meter.idle if self._resting else self.meter.rest
                note(self._rest_ns, now_ns, self.policy)
            self._rest_ns, self._resting = NEVER, False
            return
        self.batch, self._sleep, self._run_end = None, None, None
        self.meter.wakeups += 1
        if batch.chunks:
            self.outputs.step(batch, self.start_ns, now_ns)
            return
        if self._lookahead is not None:
            self._lookahead.steps_run(self.policy, steps)
        self.outputs.run(batch, Run(self.start_ns, _GROUP_COUNTS, 0, steps), now_ns)

    def pause(self, now_ns: int) -> None:
        """Have no batch from now on; requests may wait meanwhile."""
        self._rest_ns = min(self._rest_ns, now_ns)

    def _steps_alike(self, batch: Batch, now_ns: int) -> int:
        """Return the steps that nothing inside the rank can change."""
        lane = self._lane
        unseen = self._lookahead is not None and self._lookahead.unseen
        in_rhythm = lane.in_rhythm(now_ns)
        self.rhythm = (lane.live - lane.gone, lane.live_steady - lane.gone_steady) if in_rhythm else (0, 0)
        if batch.until_ns is not None:
            self.wake_ns = batch.until_ns
        if batch.repeats == 1 or not self.fast_forward or unseen or not in_rhythm:
            return 1
        return lane.steps_to_end(batch.repeats)

    def lose_client(self, request: Request) -> None:
        """A client stops looking: the step in flight, and those that follow, show it nothing."""
        answer = self.outputs.answers.get(request.id)
        in_run = self.batch is not None and not self.batch.chunks and self.rhythm[0] > 0
        if in_run and answer is not None and not answer.gone and answer.end_step != NOT_DECODING:
            self.rhythm = (self.rhythm[0] - 1, self.rhythm[1] - answer.steady)
            self.group.meter.lose_client(answer.steady)
        super().lose_client(request)

    def _rest(self, wait: Wait, now_ns: int) -> None:
        """Have no work until an arrival, or until the policy wants to look again."""
        self.pause(now_ns)
        if wait.until_ns is None:
            self.expect_news()
            self._idle = _Idle(self)
        elif wait.until_ns > now_ns:
            self.outputs.barren(1)
            self.wake_ns = wait.until_ns
            self._resting = True
            self._sleep = _CAN_BE_CUT
        else:
            self.outputs.stuck(f"the policy waits until {wait.until_ns} ns, which is not in the future")

    def contexts(self, step: int, steps: int) -> NDArray[np.int64]:
        """Return the mean contexts of sequences that verify drafts, from `step` on, int64[steps]."""
        assert isinstance(self.batch, VerifyBatch)
        over = step - self.start_step
        return self.batch.context_sums[over : over + steps] // self.batch.decodes

    # -- seen by routers, and arrivals -----------------------------------------------------------------

    def outstanding_tokens(self, now_ns: int) -> int:
        """Return prompt tokens and tokens shown by now, of all outstanding requests."""
        return self.tokens_at(now_ns, self.front.passed(now_ns, self.group.rank))

    def kv_use(self, now_ns: int) -> float:
        """Return the share of KV blocks that requests hold now."""
        return self.kv_use_at(now_ns, self.front.passed(now_ns, self.group.rank))

    def cached_tokens(self, request: Request, now_ns: int) -> int:
        """Return the tokens at the start of the request's prompt that the prefix cache holds now."""
        self._observe(now_ns, self.front.passed(now_ns, self.group.rank))
        return self.policy.cached_tokens(request)

    def tokens_at(self, time_ns: int, passed: bool) -> int:
        """Return the outstanding tokens at a time since the last boundary."""
        tokens = self.outputs.known_tokens
        if self.batch is not None and self.batch.decodes and not self.batch.chunks:
            done = self.group.steps_over(time_ns, passed) - self.start_step
            tokens += self._lane.tokens_in(done)
        return tokens

    def _observe(self, time_ns: int, passed: bool) -> None:
        if self.batch is not None and not self.batch.chunks:
            steps = self.group.steps_begun(time_ns, passed) - self.start_step
            if steps > 1:
                self.policy.settle(steps)

    def _steps_begun(self) -> int:
        """Return the steps of the present run up to the one in flight (1 if there is no run)."""
        if self.batch is None or self.batch.chunks:
            return 1
        now_ns = self.env.now
        return self.group.steps_begun(now_ns, self.front.passed(now_ns, self.group.rank)) - self.start_step

    def _bring_forward(self, boundary: Boundary, planned_steps: int = 1) -> None:
        """Let the rank decide at the end of the step in flight (now, if it has no work); see `Replica`."""
        self._sleep = None
        if not planned_steps:
            self._run_end = None
        if self.batch is None:
            self.group.wake(self)
            return
        steps = self._steps_begun()
        if self._lookahead is not None:
            steps += planned_steps
        self.group.cut(self, self.start_step + steps)

    def give_up(self, request: Request) -> None:
        """A client gave up: drop its request at the end of the step in flight."""
        self.lose_client(request)
        self._given_up.append(request)
        if self._run_end is not None:
            self._bring_forward(self._run_end, planned_steps=0)
