"""Replicas that speculate: runs of steps whose contexts grow by what each verification accepts.

What is accepted is drawn per request and step (`core.acceptance`), so a run of steps is known in advance as
it is without speculation; its step times are gathered from the table of decode steps and kept for the run.
"""

from __future__ import annotations

from array import array
from typing import cast

import numpy as np
from numpy.typing import NDArray

from simserve.core import Batch
from simserve.core.verify import VerifyBatch
from simserve.engine.decode_table import DecodePage, DecodeTable
from simserve.engine.draft_books import DraftBooks, SplitDraftBooks
from simserve.engine.draft_lane import DraftLane
from simserve.engine.rank import Rank
from simserve.engine.replica import Replica
from simserve.engine.split_replica import SplitRank, SplitReplica
from simserve.latency.base import PAGE

Int64 = NDArray[np.int64]


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


class DraftReplica(Replica):
    """A replica whose sequences verify drafts."""

    books_of = DraftBooks

    def page_of(self, batch: Batch) -> tuple[DecodePage, int]:
        """Return the step times of the run that the batch may be, and its place there."""
        assert isinstance(batch, VerifyBatch)
        steps = batch.repeats if self.fast_forward else 1
        contexts = batch.context_sums[: self._lane.steps_to_end(steps)] // batch.decodes
        return RunPage(self.table, batch.decodes, contexts), 0

    def tokens_at(self, time_ns: int, passed: bool) -> int:
        """Return the outstanding tokens at a time since the last change here (see `Replica`)."""
        tokens = self.books.known_tokens
        if self._run is not None:
            tokens += _shown(self, self._run.steps_done(time_ns, passed))
        return tokens


class DraftRank(Rank):
    """An attention rank whose sequences verify drafts."""

    books_of = DraftBooks

    def tokens_at(self, time_ns: int, passed: bool) -> int:
        """Return the outstanding tokens at a time since the last boundary (see `Rank`)."""
        tokens = self.books.known_tokens
        if self.batch is not None and self.batch.decodes and not self.batch.chunks:
            tokens += _shown(self, self.group.steps_over(time_ns, passed) - self.start_step)
        return tokens


class SplitDraftReplica(SplitReplica, DraftReplica):
    """A decoding replica of a split."""

    books_of = SplitDraftBooks


class SplitDraftRank(SplitRank, DraftRank):
    """An attention rank of a decoding group of a split."""

    books_of = SplitDraftBooks


def _shown(replica: Replica, steps: int) -> int:
    return int(cast(DraftLane, replica.books.lanes[0]).tokens(steps).sum())
