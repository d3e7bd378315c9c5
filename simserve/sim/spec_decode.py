"""Replicas that speculate: runs of steps whose contexts grow by what each verification accepts.

What is accepted is drawn per request and step (`core.acceptance`), so a run of steps is known in advance as
it is without speculation; its step times are gathered from the table of decode steps and kept for the run.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simserve.core import Batch, Request
from simserve.core.batch import VerifyBatch
from simserve.core.request import Acceptance
from simserve.core.totals import DraftResult
from simserve.latency.base import PAGE
from simserve.sim.clock import Clock
from simserve.sim.decode_batch import Answer, Lane
from simserve.sim.outputs import Outputs, Sink
from simserve.sim.recorder import GapRecorder
from simserve.sim.specs import ReplicaSpec
from simserve.sim.step_times import DecodePage, DecodeTable, StepTimes

# A lane whose answers gain several tokens per step: those drafts that the acceptance draws accept.
#
# An answer that joins knows from the draws at which step it ends, so the heap of ends works as in `Lane`;
# what
# each step shows is a sum over members to which each adds its own future on joining.

Int64 = NDArray[np.int64]
_MARGIN = 16
"""Steps drawn beyond what an answer takes in the mean."""


class DraftAnswer(Answer):
    """Progress of an answer whose tokens are drafted."""

    __slots__ = ("cut", "gained", "verified")

    def __init__(self, request: Request, length: int, steady: bool) -> None:
        """See `Answer`."""
        super().__init__(request, length, steady)
        self.verified = 0
        """Verifications: the number of the next draw (while decoding: as of joining)."""
        self.gained: Int64 = np.zeros(1, np.int64)
        """Tokens gained since joining, after 0, 1, ... steps, until the end."""
        self.cut = 0
        """Accepted tokens beyond the end of the answer."""


class DraftLane(Lane):
    """Members as counts, a heap of the steps at which they end, and the tokens of the steps ahead."""

    __slots__ = ("_acceptance", "_ahead", "_base")

    def __init__(self, gaps: GapRecorder, acceptance: Acceptance) -> None:
        """`acceptance` plays the model."""
        super().__init__(gaps)
        self._acceptance = acceptance
        self._base = 0
        self._ahead = np.zeros(8, np.int64)
        """Tokens of all members in each step from `_base` on."""

    def join(self, answer: Answer) -> None:
        """Let an answer take part from the next step on; its `shown` and `shown_ns` are true now."""
        assert isinstance(answer, DraftAnswer)
        length = answer.length
        left = length - answer.shown
        gained = self._gains(answer, left)
        answer.cut = int(gained[-1]) - left
        gained[-1] = left
        answer.gained = gained
        self._add(np.diff(gained), 1)
        answer.length = answer.shown + len(gained) - 1  # it ends where so many single tokens would
        super().join(answer)
        answer.length = length

    def leave(self, answer: Answer) -> None:
        """Take an unfinished answer out, bringing what it says of its progress up to date."""
        assert isinstance(answer, DraftAnswer)
        steps = self.step - answer.joined_step
        shown = answer.shown + int(answer.gained[steps])
        answer.verified += steps
        self._add(np.diff(answer.gained[steps:]), -1)
        super().leave(answer)
        answer.shown = shown

    def shown_after(self, answer: Answer, steps: int) -> int:
        """Return the tokens that a member has shown after so many steps more."""
        assert isinstance(answer, DraftAnswer)
        return answer.shown + int(answer.gained[self.step - answer.joined_step + steps])

    def tokens_in(self, steps: int) -> int:
        """Return the tokens that the next `steps` steps show."""
        return int(self.tokens(steps).sum())

    def tokens(self, steps: int) -> Int64:
        """Return the tokens that each of the next `steps` steps shows, int64[steps] (the caller's own)."""
        first = self.step - self._base
        known = self._ahead[first : first + steps]  # shorter if the last members end within it
        return np.concatenate([known, np.zeros(steps - len(known), np.int64)])

    def verify_alone(self, answer: DraftAnswer, given: int) -> int:
        """Let an answer that is not a member verify `given - 1` drafts; return the tokens shown."""
        drawn = self._acceptance.tokens(np.array([answer.request.id]), np.array([answer.verified]))
        gain, left = min(int(drawn[0]), given), answer.length - answer.shown
        answer.verified += 1
        answer.cut = max(0, gain - left)
        answer.shown += min(gain, left)
        return min(gain, left)

    def advance(self, steps: int, now_ns: int) -> list[Answer]:
        """Count `steps` steps, the last ending now; return the answers that end with it."""
        finished = super().advance(steps, now_ns)
        for answer in finished:
            assert isinstance(answer, DraftAnswer)
            answer.verified += len(answer.gained) - 1
        return finished

    # -- parts -----------------------------------------------------------------------------------------

    def _gains(self, answer: DraftAnswer, left: int) -> Int64:
        """Return the tokens after 0, 1, ... steps, the last being the first that is `left` or more."""
        acceptance = self._acceptance
        steps = min(left, int(1.25 * left / acceptance.mean_tokens) + _MARGIN)
        while True:
            draws = np.arange(answer.verified, answer.verified + steps)
            gained = np.cumsum(acceptance.tokens(np.int64(answer.request.id), draws))  # pyright: ignore
            if gained[-1] >= left:
                last = int(np.searchsorted(gained, left))
                return np.concatenate([[0], gained[: last + 1]])
            steps = min(left, 2 * steps)

    def _add(self, gains: Int64, sign: int) -> None:
        """Add an answer's tokens to the steps from now on, or take them out."""
        first = self.step - self._base
        if first + len(gains) > len(self._ahead):
            rest = self._ahead[first:]
            self._ahead = np.zeros(2 * max(len(rest), len(gains)), np.int64)
            self._ahead[: len(rest)] = rest
            self._base, first = self.step, 0
        self._ahead[first : first + len(gains)] += sign * gains


# The outputs of a replica that speculates: steps in which an answer gains several tokens at once.

if TYPE_CHECKING:
    from simserve.sim.decode_batch import Run


class DraftOutputs(Outputs):
    """Outputs whose lane draws what each verification accepts."""

    def __init__(self, env: Clock, spec: ReplicaSpec, sink: Sink, acceptance: Acceptance) -> None:
        """One lane: there are no pipeline stages."""
        self._lane = DraftLane(sink.recorder.gaps, acceptance)
        super().__init__(env, spec, sink, [self._lane])
        self._drafts = acceptance.drafts
        self.verifications = 0
        """Sequences that verified drafts, over all steps, whose result was wanted."""
        self.drafted_tokens = 0
        """Drafts that they verified."""
        self.accepted_tokens = 0
        """Drafts of these that were accepted, beyond the end of an answer too."""

    def open(self, request: Request, length: int) -> None:
        """A request arrived whose answer has `length` tokens."""
        super().open(request, length)
        self.answers[request.id] = DraftAnswer(request, length, self._recorder.is_steady(request))

    def begin(self, batch: Batch, now_ns: int) -> None:
        """Book what a decision changes at once (see `Outputs`).

        A scheduler that plans ahead may leave out, or cut short, a request that has ended meanwhile.
        """
        stalled = batch.stalled
        batch.stalled = [request for request in stalled if request.id in self.answers]
        super().begin(batch, now_ns)
        batch.stalled = stalled

    def step(self, batch: Batch, start_ns: int, now_ns: int, lane_index: int = 0) -> None:
        """Book one step with prompt chunks, from `start_ns` until now."""
        lane, live, tokens = self._lane, 0, np.zeros(1, np.int64)
        finished: list[Answer] = []
        if batch.decodes:
            live, tokens = lane.live, lane.tokens(1)
            lane.show_gaps(now_ns)
            finished = lane.advance(1, now_ns)
        shown = self._count(batch, start_ns, now_ns, live, tokens, finished)
        for chunk in batch.chunks:
            if chunk.last:
                self._prompt_done(self.answers[chunk.request.id], now_ns, lane_index, finished)
        self._close(batch, 1, shown, finished, lane_index)

    def run(self, batch: Batch, run: Run, now_ns: int, lane_index: int = 0) -> None:
        """Book a run of decode steps; the last ends now."""
        start_ns, page, offset, steps = run
        lane = self._lane
        live, tokens = lane.live, lane.tokens(steps)
        if lane.in_rhythm(start_ns):
            self._count_gaps(lane, page, offset, steps)
        else:
            page.count(offset, steps, 0, 0)
            lane.show_gaps(now_ns)
        finished = lane.advance(steps, now_ns)
        shown = self._count(batch, start_ns, now_ns, live, tokens, finished)
        self._close(batch, steps, shown, finished, lane_index)

    def drafting(self) -> DraftResult | None:
        """Return what was drafted and verified."""
        counts = (self.verifications, self.drafted_tokens, self.accepted_tokens)
        return DraftResult(*counts, context_reads=self.meter.decode_reads)

    # -- parts -----------------------------------------------------------------------------------------

    def _close(self, batch: Batch, steps: int, decoded: int, finished: list[Answer], lane_index: int) -> None:
        """Tell the policy, then the world, what ended (see `Outputs`)."""
        for answer in finished:
            assert isinstance(answer, DraftAnswer)
            self._recorder.verifications[answer.request.id] = answer.verified
        super()._close(batch, steps, decoded, finished, lane_index)

    def _count(
        self, batch: Batch, start_ns: int, now_ns: int, live: int, tokens: Int64, finished: list[Answer]
    ) -> int:
        """Count what the steps showed: `tokens` in each by `live` members of the lane, and more by others.

        Adds to `finished` those others that end; returns all tokens shown.
        """
        assert isinstance(batch, VerifyBatch)
        steps = len(tokens)
        alone, tokens_alone = self._alone(batch, now_ns, finished)
        tokens[-1] += tokens_alone
        shown = int(tokens.sum())
        for answer in finished:
            assert isinstance(answer, DraftAnswer)
            batch.cut[answer.request.id] = answer.cut
        self.verifications += live * steps + alone
        self.drafted_tokens += live * steps * self._drafts
        self.accepted_tokens += shown + sum(batch.cut.values()) - live * steps - alone
        self.known_tokens += shown
        self.meter.verified(start_ns, now_ns, self._policy, batch, tokens)
        return shown

    def _alone(self, batch: VerifyBatch, now_ns: int, finished: list[Answer]) -> tuple[int, int]:
        """Let those that missed the step, or had fewer drafts in it, take part again.

        Returns how many of the latter there were, and the tokens that they show.
        """
        alone = tokens = 0
        for request in batch.stalled:
            answer = self.answers.get(request.id)
            if answer is None:
                continue  # it had ended when the step was planned; its scheduler had not heard of it
            assert isinstance(answer, DraftAnswer)
            given = batch.trimmed.get(request.id)
            if given is not None:
                alone += 1
                tokens += self._lane.verify_alone(answer, given)
                self.drafted_tokens += given - 1
                if not answer.gone:
                    self._recorder.gaps.add(now_ns - answer.shown_ns, 1, answer.steady)
                answer.shown_ns = now_ns
                if answer.shown == answer.length:
                    finished.append(answer)
                    continue
            self._lane.join(answer)
        return alone, tokens


class RunPage(DecodePage):
    """The steps of one run, in order; what is counted here is counted in the pages they are from."""

    __slots__ = ("_parts",)

    def __init__(self, table: DecodeTable, sequences: int, contexts: Int64) -> None:
        """`contexts`: int64[steps], the mean context of each step, never descending."""
        first, last = int(contexts[0]) // PAGE, int(contexts[-1]) // PAGE
        self._parts: list[tuple[DecodePage, Int64]] = []
        """Pages, and the places in them of the steps that they hold."""
        ends = [0]
        start = 0
        for number in range(first, last + 1):
            stop = len(contexts)
            if number < last:
                stop = int(np.searchsorted(contexts, (number + 1) * PAGE))
            page, places = table.page(sequences, number), contexts[start:stop] - number * PAGE
            times = np.frombuffer(page.cumulative_ns, np.int64)
            ends += (np.cumsum(times[places + 1] - times[places]) + ends[-1]).tolist()
            self._parts.append((page, places))
            start = stop
        self.cumulative_ns = array("q", ends)

    def count(self, offset: int, steps: int, tokens: int, steady_tokens: int) -> None:
        """Count `steps` steps of the run from its step `offset` on (see `DecodePage`)."""
        for page, places in self._parts:
            counted = places[offset : offset + steps]
            page.count_each(counted, tokens, steady_tokens)
            offset = max(0, offset - len(places))
            steps -= len(counted)


class DraftTimes(StepTimes):
    """Step times of runs whose contexts grow by what is accepted."""

    def __init__(self, table: DecodeTable, fast_forward: bool) -> None:
        """Without `fast_forward` every run is one step."""
        super().__init__(table)
        self._fast_forward = fast_forward

    def page_of(self, batch: Batch, lane: Lane) -> tuple[DecodePage, int]:
        """Return the step times of the run that the batch may be, and its place there."""
        assert isinstance(batch, VerifyBatch)
        steps = batch.repeats if self._fast_forward else 1
        contexts = batch.context_sums[: lane.steps_to_end(steps)] // batch.decodes
        return RunPage(self.table, batch.decodes, contexts), 0
