"""The outputs of a replica: they play the model (they alone know how long answers are) and record outcomes.

Everything here happens at a step boundary: `begin` when a batch was decided, `step` or `run` when its time
has passed. The scheduler is told only which requests finished.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn, Protocol

from simserve.core import Batch, Request
from simserve.core.totals import DraftResult
from simserve.errors import InvariantError
from simserve.sim.clock import Clock
from simserve.sim.decode_batch import NOT_DECODING, Answer, Lane
from simserve.sim.meters import Meter
from simserve.sim.recorder import Stamps
from simserve.sim.specs import ReplicaSpec

if TYPE_CHECKING:
    from simserve.sim.decode_batch import Run
    from simserve.sim.step_times import DecodePage


_MOST_BARREN_STEPS = 20_000
"""Decisions in a row without progress, after which the run is declared stuck.

Progress is a token shown, or prompt tokens computed for the first time: both are finite in number.
"""


class Sink(Protocol):
    """What outputs report to: the cluster, or the prefill side of a split."""

    @property
    def recorder(self) -> Stamps:
        """Where times of requests, and gaps between tokens, are written."""
        ...

    def first_token(self, request: Request) -> None:
        """A request's first token was made."""
        ...

    def complete(self, request: Request, output_tokens: int) -> None:
        """A request's last token was made."""
        ...

    def abandon(self, request: Request, output_tokens: int, seen_tokens: int) -> None:
        """The engine dropped a request whose client gave up after `seen_tokens`."""
        ...


class Outputs:
    """Answers in progress, totals, and the way to the recorder."""

    def __init__(self, env: Clock, spec: ReplicaSpec, sink: Sink, lanes: Sequence[Lane]) -> None:
        """One lane per microbatch that can be in flight."""
        self._env = env
        self._spec = spec
        self._sink = sink
        self._recorder = sink.recorder
        self._policy = spec.policy
        self.meter = Meter()
        self.answers: dict[int, Answer] = {}
        self.lanes = list(lanes)
        self._single = len(self.lanes) == 1
        self.known_tokens = 0
        """Prompt tokens and tokens shown, of all outstanding requests."""
        self._barren_steps = 0

    def report_to(self, sink: Sink) -> None:
        """Report to another sink from now on; no request may be here."""
        self._sink, self._recorder = sink, sink.recorder
        for lane in self.lanes:
            lane.gaps = sink.recorder.gaps

    def open(self, request: Request, length: int) -> None:
        """A request arrived whose answer has `length` tokens."""
        self.answers[request.id] = Answer(request, length, self._recorder.is_steady(request))
        self.known_tokens += request.prompt_tokens
        self.meter.arrive(self._env.now)

    def begin(self, batch: Batch, now_ns: int) -> None:
        """Book what a decision changes at once: preemptions, missed steps, admissions, prompt tokens."""
        recorder, answers = self._recorder, self.answers
        for request in batch.preempted:
            answer = answers.get(request.id)
            if answer is None:
                continue  # ended in the step before; its scheduler, a step behind, has not heard of it
            self.meter.preemptions += 1
            recorder.preemptions[request.id] += 1
            answer.left_ns = now_ns
            self._leave_lane(answer)
        for request in batch.stalled:
            self._leave_lane(answers[request.id])
        for request in batch.admitted:
            if recorder.first_scheduled_ns[request.id] < 0:
                recorder.first_scheduled_ns[request.id] = now_ns
                recorder.cached_tokens[request.id] = request.cached
            else:
                recorder.requeued_ns[request.id] += now_ns - answers[request.id].left_ns
        for chunk in batch.chunks:
            self._count_prefill(answers[chunk.request.id], chunk.tokens, chunk.cached)

    def step(self, batch: Batch, start_ns: int, now_ns: int, lane_index: int = 0) -> None:
        """Book one step with prompt chunks, from `start_ns` until now."""
        lane = self.lanes[lane_index]
        finished: list[Answer] = []
        decoded = lane.live if batch.decodes else 0
        self.meter.run(start_ns, now_ns, self._policy, batch, decoded, 1)
        if batch.decodes:
            self.known_tokens += decoded
            lane.show_gaps(now_ns)
            finished = lane.advance(1, now_ns)
        if batch.stalled:
            self._rejoin(batch, lane)
        for chunk in batch.chunks:
            if chunk.last:
                self._prompt_done(self.answers[chunk.request.id], now_ns, lane_index, finished)
        self._close(batch, 1, decoded, finished, lane_index)

    def run(self, batch: Batch, run: Run, now_ns: int, lane_index: int = 0) -> None:
        """Book a run of decode steps; the last ends now."""
        start_ns, page, offset, steps = run
        lane = self.lanes[lane_index]
        live = lane.live
        decoded = live * steps
        self.meter.run(start_ns, now_ns, self._policy, batch, live, steps)
        self.known_tokens += decoded
        if self._single and lane.in_rhythm(start_ns):
            if lane.gone:
                self._count_gaps(lane, page, offset, steps)
            else:
                page.count(offset, steps, live, lane.live_steady)
        else:
            page.count(offset, steps, 0, 0)
            lane.show_gaps(now_ns)
        finished = lane.advance(steps, now_ns)
        if batch.stalled:
            self._rejoin(batch, lane)
        self._close(batch, steps, decoded, finished, lane_index)

    def empty(self, batch: Batch, now_ns: int, lane_index: int = 0) -> None:
        """Book a decision that computes nothing: it takes no time, but may have preempted or stalled some.

        Who is admitted without a step has its KV from elsewhere: it shows the token that came with it, or
        goes on decoding if it has shown that before.
        """
        self.begin(batch, now_ns)
        if batch.admitted:
            self._take_up(batch, now_ns, lane_index)
            return
        self._rejoin(batch, self.lanes[lane_index])
        self._policy.update(batch, 1, (), lane_index)
        self.barren(1)

    def lose_client(self, request: Request, steps: int) -> None:
        """A client gave up after `steps` steps of the run in flight: it sees nothing from now on."""
        answer = self.answers.get(request.id)
        if answer is None or answer.gone:
            return
        answer.seen = answer.shown
        if answer.end_step != NOT_DECODING:
            lane = self.lanes[answer.lane]
            answer.seen = lane.shown_after(answer, steps)
            lane.lose_client(answer)
        answer.gone = True

    def drop(self, request: Request) -> bool:
        """Drop a request whose client gave up; False if it must be tried again after the next step.

        One that waits goes at once; one that decodes ends with its next token (the engine would drop it
        just before); one whose prompt is being computed goes on until it decodes.
        """
        answer = self.answers.get(request.id)
        if answer is None:
            return True
        if answer.end_step != NOT_DECODING:
            lane = self.lanes[answer.lane]
            if answer.end_step > lane.step + 1:
                lane.leave(answer)
                answer.length = answer.shown + 1
                lane.join(answer)
            return True
        if not self._policy.drop(request):
            return False
        del self.answers[request.id]
        self.known_tokens -= request.prompt_tokens + answer.shown
        self._sink.abandon(request, answer.shown, answer.seen)
        return True

    def forget(self, request: Request) -> None:
        """Strike off a request that failed while it waited for its KV."""
        answer = self.answers.pop(request.id)
        self.known_tokens -= request.prompt_tokens + answer.shown

    def barren(self, steps: int) -> None:
        """Count steps (or waits for a time of the policy's choice) without progress; too many end the run."""
        self._barren_steps += steps
        if self._barren_steps > _MOST_BARREN_STEPS:
            self.stuck(f"{self._barren_steps} decisions in a row brought no progress")

    def stuck(self, why: str) -> NoReturn:
        """Stop a run that cannot go on, naming the requests."""
        names = ", ".join(str(number) for number in list(self.answers)[:5])
        raise InvariantError(
            f"replica {self._spec.name} is stuck at {self._env.now} ns: {why}; "
            f"{len(self.answers)} requests outstanding (first: {names}), "
            f"{self._policy.running} running, {self._policy.waiting} waiting"
        )

    def drafting(self) -> DraftResult | None:
        """Return what was drafted and verified; None: nothing is."""
        return None

    # -- parts -----------------------------------------------------------------------------------------

    def _close(self, batch: Batch, steps: int, decoded: int, finished: list[Answer], lane_index: int) -> None:
        """Tell the policy, then the world, what ended."""
        if decoded or finished:
            self._barren_steps = 0
        else:
            self.barren(steps)
        if not finished:
            self._policy.update(batch, steps, (), lane_index)
            return
        self._policy.update(batch, steps, [answer.request for answer in finished], lane_index)
        for answer in finished:
            request = answer.request
            del self.answers[request.id]
            self.known_tokens -= request.prompt_tokens + answer.length
        for answer in finished:
            if answer.gone:
                self._sink.abandon(answer.request, answer.length, answer.seen)
            else:
                self._sink.complete(answer.request, answer.length)

    def _take_up(self, batch: Batch, now_ns: int, lane_index: int) -> None:
        """Let those that a decision admits without a step decode from now on."""
        finished: list[Answer] = []
        for request in batch.admitted:
            answer = self.answers[request.id]
            if answer.shown:
                self.lanes[lane_index].join(answer)
            else:
                self._prompt_done(answer, now_ns, lane_index, finished)
        self._barren_steps = 0
        self._close(batch, 1, 0, finished, lane_index)

    def _prompt_done(self, answer: Answer, now_ns: int, lane_index: int, finished: list[Answer]) -> None:
        """A step computed the last known token of the request: show a token, unless none is wanted."""
        recorder, row = self._recorder, answer.request.id
        if not answer.length:
            finished.append(answer)
            return
        if answer.gone:
            pass  # nobody is there to see it
        elif answer.shown:
            recorder.gaps.add(now_ns - answer.shown_ns, 1, answer.steady)
        else:
            recorder.first_token_ns[row] = now_ns
            self._sink.first_token(answer.request)
        self._barren_steps = 0
        answer.shown += 1
        answer.shown_ns = now_ns
        self.known_tokens += 1
        if answer.shown == answer.length:
            finished.append(answer)
        else:
            self.lanes[lane_index].join(answer)

    def _count_gaps(self, lane: Lane, page: DecodePage, offset: int, steps: int) -> None:
        """Count the gaps of a run in rhythm; clients gave up in its last step, or its only one."""
        if lane.gone and steps > 1:
            page.count(offset, steps - 1, lane.live, lane.live_steady)
            offset, steps = offset + steps - 1, 1
        page.count(offset, steps, lane.live - lane.gone, lane.live_steady - lane.gone_steady)

    def _leave_lane(self, answer: Answer) -> None:
        """Take an answer out of the steps that come, if it decodes."""
        if answer.end_step != NOT_DECODING:
            self.lanes[answer.lane].leave(answer)
            answer.computed_high = answer.request.prompt_tokens + answer.shown - 1

    def _rejoin(self, batch: Batch, lane: Lane) -> None:
        """Let those that missed the step take part again."""
        for request in batch.stalled:
            lane.join(self.answers[request.id])

    def _count_prefill(self, answer: Answer, tokens: int, cached: int) -> None:
        """Count prompt tokens without padding, and how many of them had been computed before."""
        meter = self.meter
        tokens = min(tokens, answer.request.prompt_tokens + answer.shown - cached)
        meter.prefill(tokens, cached)
        high, end = answer.computed_high, cached + tokens
        if high > cached:
            meter.recomputed_tokens += min(high, end) - cached
        if end > high:
            answer.computed_high = end
            self._barren_steps = 0
