"""The books of a replica that speculates: steps in which an answer gains several tokens at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simserve.core import Batch, Request
from simserve.core.acceptance import Acceptance
from simserve.core.totals import DraftResult
from simserve.core.verify import VerifyBatch
from simserve.engine.answer import Answer
from simserve.engine.booking import Books
from simserve.engine.draft_lane import DraftAnswer, DraftLane
from simserve.engine.split_books import SplitBooks

Int64 = NDArray[np.int64]

if TYPE_CHECKING:
    from simserve.engine.cluster import Cluster
    from simserve.engine.replica import Replica
    from simserve.engine.run import Run


class DraftBooks(Books):
    """Books whose lane draws what each verification accepts."""

    def __init__(self, replica: Replica, cluster: Cluster) -> None:
        """One lane: there are no pipeline stages."""
        super().__init__(replica, cluster)
        acceptance = replica.spec.acceptance
        assert isinstance(acceptance, Acceptance)
        self._drafts = acceptance.drafts
        self._lane = DraftLane(cluster.recorder.gaps, acceptance)
        self.lanes = [self._lane]
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
        """Book what a decision changes at once (see `Books`).

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
        """Tell the policy, then the world, what ended (see `Books`)."""
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


class SplitDraftBooks(DraftBooks, SplitBooks):
    """The same on the decoding side of a split."""
