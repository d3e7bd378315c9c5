"""Replicas whose steps depend on how unequal the contexts of their sequences are (see `latency.uneven`).

All contexts grow by one in each step, so a lane keeps what of a context does not change: its tokens when the
lane had made no step. What unequal contexts add to a step is found when a sequence joins or leaves, and holds
until the next does; so a run of steps is as long as ever, and equals its steps one by one.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from functools import cache
from types import new_class
from typing import TYPE_CHECKING

from simserve.core import Batch
from simserve.latency.base import PAGE, StepLatency
from simserve.latency.kernels.decode import Lengths
from simserve.latency.mixed import UnevenDecodes
from simserve.latency.step_time import TableLatency
from simserve.sim.decode_batch import Answer, Lane
from simserve.sim.outputs import Books
from simserve.sim.recorder import GapRecorder
from simserve.sim.replica import Replica
from simserve.sim.step_times import DecodePage, DecodeTable

if TYPE_CHECKING:
    from simserve.sim.cluster import Cluster


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


class UnevenBooks(Books):
    """Books whose lanes know contexts."""

    def __init__(self, replica: Replica, cluster: Cluster) -> None:
        super().__init__(replica, cluster)
        self.lanes: list[Lane] = [LengthLane(lane.gaps, lane.index) for lane in self.lanes]


class UnevenSteps(Replica):
    """What differs: where a step's duration comes from."""

    table: LevelTable
    latency: TableLatency

    def step_ns(self, batch: Batch) -> int:
        """Return the duration of a step with prompt chunks."""
        longest = lengths_of(self).longest if batch.decodes else 0
        return self.latency.step_ns(batch.decodes, batch.decode_context, batch.chunks, longest)

    def page_of(self, batch: Batch) -> tuple[DecodePage, int]:
        """Return the table page of a decode step and its place there."""
        number, offset = divmod(batch.decode_context // batch.decodes, PAGE)
        uneven = self.latency.uneven
        assert uneven is not None
        return self.table.level(batch.decodes, number, lengths_of(self).level_ns(uneven)), offset


def lengths_of(replica: Replica) -> LengthLane:
    """Return the lane (of the microbatch at hand) of a replica that minds unequal contexts."""
    lane = replica._lane
    assert isinstance(lane, LengthLane)
    return lane


def table_of(latency: StepLatency) -> DecodeTable:
    """Return an empty table of a latency's decode steps."""
    return LevelTable(latency) if getattr(latency, "uneven", None) else DecodeTable(latency)


@cache
def minding_lengths(kind: type[Replica]) -> type[Replica]:
    """Return the kind of replica that is as `kind`, and minds unequal contexts."""
    books, bases = UnevenBooks, (UnevenSteps,)
    if kind.books_of is not Books:
        books = new_class(f"Uneven{kind.books_of.__name__}", (kind.books_of, UnevenBooks))
    if kind is not Replica:
        bases = (kind, UnevenSteps)
    return new_class(f"Uneven{kind.__name__}", bases, exec_body=lambda body: body.update(books_of=books))
