"""A lane: answers that decode in the same steps. A replica has one, or one per microbatch of a pipeline.

A lane counts its steps, so an answer that joins at step j with r tokens left ends at step j + r and nothing
is done per token. For the gaps between tokens it knows when its members were last shown one: nearly always at
the end of the lane's last step; whoever joined or came back at another time is counted apart until the next.
"""

from __future__ import annotations

from bisect import bisect_left
from heapq import heappop, heappush
from typing import NamedTuple

from simserve.core import Request
from simserve.sim.recorder import GapRecorder
from simserve.sim.step_times import DecodePage

# A run: consecutive equal steps that nothing inside the replica can change, and how far they are by now.


class Run(NamedTuple):
    """Equal decode steps in progress: entries [offset, offset + steps] of a page."""

    start_ns: int
    page: DecodePage
    offset: int
    steps: int

    def end_ns(self, steps: int) -> int:
        """Return when the first `steps` steps end."""
        times = self.page.cumulative_ns
        return self.start_ns + times[self.offset + steps] - times[self.offset]

    def steps_begun(self, now_ns: int, passed: bool) -> int:
        """Return the steps up to the one in flight; one that ends just now is over only if `passed`."""
        times, offset = self.page.cumulative_ns, self.offset
        target = times[offset] + now_ns - self.start_ns
        index = bisect_left(times, target, offset + 1, offset + self.steps)
        if passed and times[index] == target:
            index += 1
        return min(index - offset, self.steps)

    def steps_done(self, now_ns: int, passed: bool) -> int:
        """Return the steps that are over; one that ends just now counts only if `passed`."""
        begun = self.steps_begun(now_ns, passed)
        return begun if passed and self.end_ns(begun) == now_ns else begun - 1


# The model's side of a request: how long its answer will be, and how much of it has been shown.
#
# This is what a scheduler must never see; only the replica, which plays the model, holds it.

NOT_DECODING = -1


class Answer:
    """Progress of one answer."""

    __slots__ = (
        "computed_high",
        "end_step",
        "gone",
        "joined_step",
        "lane",
        "left_ns",
        "length",
        "request",
        "seen",
        "shown",
        "shown_ns",
        "steady",
    )
    lane: int
    """Lane in which it decodes; set by `Lane.join`, as is the next."""
    joined_step: int
    """Decode step of the lane at which it joined."""
    left_ns: int
    """When it was last preempted; set then."""
    seen: int
    """Tokens shown when its client gave up; set then."""

    def __init__(self, request: Request, length: int, steady: bool) -> None:
        """`length` output tokens; `steady` if the request belongs to the steady window."""
        self.request = request
        self.length = length
        self.steady = steady
        self.gone = False
        """Its client gave up: what it gains from now on is shown to nobody."""
        self.shown = 0
        """Tokens shown (while decoding: as of joining)."""
        self.shown_ns = 0
        """When the last of them was shown (while decoding: as of joining)."""
        self.end_step = NOT_DECODING
        """Decode step of the lane after which the answer is complete."""
        self.computed_high = 0
        """Most tokens whose KV was ever computed: what a recompute repeats."""


class Lane:
    """Members as counts, and a heap of the steps at which they end."""

    __slots__ = (
        "_ends",
        "_joined",
        "_others",
        "gaps",
        "gone",
        "gone_steady",
        "index",
        "live",
        "live_steady",
        "shown_ns",
        "step",
    )

    def __init__(self, gaps: GapRecorder, index: int = 0) -> None:
        """`index` tells the lanes of a replica apart."""
        self.gaps = gaps
        self.index = index
        self.step = 0
        self.live = 0
        """Answers that produce a token in each step."""
        self.live_steady = 0
        self.gone = 0
        """Those of them whose clients gave up: their tokens are shown to nobody, so they have no gaps."""
        self.gone_steady = 0
        self.shown_ns = 0
        """When all members but those in `_others` were last shown a token."""
        self._others: dict[int, list[int]] = {}
        """Members last shown a token at another time: time -> [all, steady]."""
        self._ends: list[tuple[int, int, Answer]] = []
        """(end step, order of joining, answer); stale if the answer's end step moved, or it did."""
        self._joined = 0

    def join(self, answer: Answer) -> None:
        """Let an answer take part from the next step on; its `shown` and `shown_ns` are true now."""
        answer.lane = self.index
        answer.joined_step = self.step
        answer.end_step = self.step + answer.length - answer.shown
        self._joined += 1
        heappush(self._ends, (answer.end_step, self._joined, answer))
        if not self.live:
            self.shown_ns = answer.shown_ns
            self._others.clear()
        elif answer.shown_ns != self.shown_ns and not answer.gone:
            counts = self._others.setdefault(answer.shown_ns, [0, 0])
            counts[0] += 1
            counts[1] += answer.steady
        self.live += 1
        self.live_steady += answer.steady
        if answer.gone:
            self._count_gone(answer, 1)

    def lose_client(self, answer: Answer) -> None:
        """The client of a member gave up: count no gap of it from the step in flight on."""
        self._forget(answer)
        self._count_gone(answer, 1)

    def shown_after(self, answer: Answer, steps: int) -> int:
        """Return the tokens that a member has shown after so many steps more."""
        return answer.length - (answer.end_step - self.step) + steps

    def leave(self, answer: Answer) -> None:
        """Take an unfinished answer out, bringing its `shown` and `shown_ns` up to date."""
        answer.shown = answer.length - (answer.end_step - self.step)
        answer.end_step = NOT_DECODING
        self.live -= 1
        self.live_steady -= answer.steady
        if answer.gone:
            self._count_gone(answer, -1)
        elif not self._forget(answer):
            answer.shown_ns = self.shown_ns

    def tokens_in(self, steps: int) -> int:
        """Return the tokens that the next `steps` steps show."""
        return self.live * steps

    def steps_to_end(self, most: int) -> int:
        """Return the steps until the first answer ends, at most `most`."""
        ends = self._ends
        while ends:
            end_step, _, answer = ends[0]
            if answer.end_step == end_step and answer.lane == self.index:
                return min(most, end_step - self.step)
            heappop(ends)
        return most

    def in_rhythm(self, now_ns: int) -> bool:
        """Return True if every member was shown its last token just now."""
        return self.shown_ns == now_ns and not self._others

    def advance(self, steps: int, now_ns: int) -> list[Answer]:
        """Count `steps` steps, the last ending now; return the answers that end with it."""
        self.step += steps
        self.shown_ns = now_ns
        ends, finished = self._ends, []
        while ends and ends[0][0] <= self.step:
            end_step, _, answer = heappop(ends)
            if answer.end_step == end_step and answer.lane == self.index:
                answer.end_step = NOT_DECODING
                answer.shown = answer.length
                self.live -= 1
                self.live_steady -= answer.steady
                if answer.gone:
                    self._count_gone(answer, -1)
                finished.append(answer)
        return finished

    def show_gaps(self, now_ns: int) -> None:
        """Record the gaps of one step that ends now; call before `advance`."""
        count, steady = self.live - self.gone, self.live_steady - self.gone_steady
        if self._others:
            for shown_ns, (others, steady_others) in self._others.items():
                self.gaps.add(now_ns - shown_ns, others, steady_others)
                count -= others
                steady -= steady_others
            self._others.clear()
        if count:
            self.gaps.add(now_ns - self.shown_ns, count, steady)

    def _forget(self, answer: Answer) -> bool:
        """Count a member no longer apart, if it was; return whether it was."""
        if answer.joined_step != self.step or answer.shown_ns not in self._others:
            return False
        counts = self._others[answer.shown_ns]
        counts[0] -= 1
        counts[1] -= answer.steady
        if not counts[0]:
            del self._others[answer.shown_ns]
        return True

    def _count_gone(self, answer: Answer, sign: int) -> None:
        self.gone += sign
        self.gone_steady += sign * answer.steady
