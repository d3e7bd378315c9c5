"""A lane whose answers gain several tokens per step: those drafts that the acceptance draws accept.

An answer that joins knows from the draws at which step it ends, so the heap of ends works as in `Lane`; what
each step shows is a sum over members to which each adds its own future on joining.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simserve.core import Request
from simserve.core.acceptance import Acceptance
from simserve.engine.answer import Answer
from simserve.engine.gaps import GapRecorder
from simserve.engine.lane import Lane

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
