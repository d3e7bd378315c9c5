"""Step times that depend on how unequal the contexts of the sequences are (see `latency.uneven`).

All contexts grow by one in each step, so a lane keeps what of a context does not change: its tokens when the
lane had made no step. What unequal contexts add to a step is found when a sequence joins or leaves, and holds
until the next does; so a run of steps is as long as ever, and equals its steps one by one.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from simserve.core import Batch
from simserve.latency.base import PAGE, StepLatency
from simserve.latency.kernels.decode import Lengths
from simserve.latency.mixed import UnevenDecodes
from simserve.latency.step_time import TableLatency
from simserve.sim.decode_batch import Answer, Lane
from simserve.sim.recorder import GapRecorder
from simserve.sim.step_times import DecodePage, DecodeTable, StepTimes


class LengthLane(Lane):
    """A lane that knows the contexts of its members."""

    __slots__ = ("_bases", "_level_ns", "_squares", "_total")

    def __init__(self, gaps: GapRecorder, index: int = 0) -> None:
        super().__init__(gaps, index)
        self._bases: list[int] = []
        """Context of each member less the lane's steps, ascending."""
        self._total = 0
        """Their sum."""
        self._squares = 0
        """The sum of their squares."""
        self._level_ns: int | None = 0
        """What they add to a step; None: somebody joined or left since it was found."""

    @property
    def longest(self) -> int:
        """Longest context of the next step (new token included); 0 without members."""
        return self._bases[-1] + self.step if self._bases else 0

    def level_ns(self, uneven: UnevenDecodes) -> int:
        """Return what unequal contexts add to the next step."""
        if self._level_ns is None:
            self._level_ns = uneven.level_ns(self._lengths(uneven.kept)) if self._bases else 0
        return self._level_ns

    def join(self, answer: Answer) -> None:
        """Let an answer take part from the next step on."""
        super().join(answer)
        base = _base(answer)
        insort(self._bases, base)
        self._count(1, base)

    def leave(self, answer: Answer) -> None:
        """Take an unfinished answer out."""
        self._drop_length(answer, answer.length - answer.end_step)
        super().leave(answer)

    def advance(self, steps: int, now_ns: int) -> list[Answer]:
        """Count `steps` steps, the last ending now; return the answers that end with it."""
        finished = super().advance(steps, now_ns)
        for answer in finished:
            self._drop_length(answer, answer.length - self.step)
        return finished

    def _drop_length(self, answer: Answer, shown_less_steps: int) -> None:
        base = answer.request.prompt_tokens + shown_less_steps
        del self._bases[bisect_left(self._bases, base)]
        self._count(-1, base)

    def _count(self, sign: int, base: int) -> None:
        self._total += sign * base
        self._squares += sign * base * base
        self._level_ns = None

    def _lengths(self, most: int) -> Lengths:
        bases, step = self._bases, self.step
        count = len(bases)
        squares = self._squares + step * (2 * self._total + count * step)
        longest = [base + step for base in bases[: -most - 1 : -1]]
        return Lengths(count, self._total + count * step, squares, longest)


def _base(answer: Answer) -> int:
    """Return the context of a decoding answer's next step, less its lane's steps."""
    return answer.request.prompt_tokens + answer.shown - answer.joined_step


class LevelTable(DecodeTable):
    """Pages by (sequences, page number, level)."""

    latency: TableLatency

    def level(self, sequences: int, number: int, level_ns: int) -> DecodePage:
        """Return the page of mean contexts from number * PAGE on whose steps take `level_ns` longer."""
        key = (sequences, number, level_ns)
        page = self._pages.get(key)
        if page is None:
            page = self._pages[key] = DecodePage(self.latency.decode_page(*key))
        return page


class UnevenTimes(StepTimes):
    """Step times that depend on the contexts of a lane's members."""

    def __init__(self, table: LevelTable, uneven: UnevenDecodes) -> None:
        """`uneven` is the latency's."""
        super().__init__(table)
        self._levels = table
        self._uneven = uneven

    def step_ns(self, batch: Batch, lane: Lane) -> int:
        """Return the duration of a step with prompt chunks (see `StepTimes`)."""
        assert isinstance(lane, LengthLane)
        longest = lane.longest if batch.decodes else 0
        return self._levels.latency.step_ns(batch.decodes, batch.decode_context, batch.chunks, longest)

    def page_of(self, batch: Batch, lane: Lane) -> tuple[DecodePage, int]:
        """Return the page of step times on which a decode step of `lane` is, and its place there."""
        assert isinstance(lane, LengthLane)
        number, offset = divmod(batch.decode_context // batch.decodes, PAGE)
        return self._levels.level(batch.decodes, number, lane.level_ns(self._uneven)), offset


def uneven_of(latency: StepLatency) -> UnevenDecodes | None:
    """Return what unequal contexts add to the steps of a latency; None: nothing."""
    return latency.uneven if isinstance(latency, TableLatency) else None


def table_of(latency: StepLatency) -> DecodeTable:
    """Return an empty table of a latency's decode steps."""
    return DecodeTable(latency) if uneven_of(latency) is None else LevelTable(latency)
