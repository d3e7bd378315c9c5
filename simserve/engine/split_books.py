"""The books of a replica in a split: a request may be taken up without a step, its first token known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simserve.core import Batch
from simserve.engine.answer import Answer
from simserve.engine.booking import Books

if TYPE_CHECKING:
    from simserve.engine.cluster import Cluster


class SplitBooks(Books):
    """Books that know decisions which admit and compute nothing."""

    def turn(self, side: Cluster) -> None:
        """Report to another side from now on; nobody may be here."""
        self._cluster, self._recorder = side, side.recorder
        for lane in self.lanes:
            lane.gaps = side.recorder.gaps

    def empty(self, batch: Batch, now_ns: int, lane_index: int = 0) -> None:
        """Book a decision that takes no time: who is admitted shows the token that came with its KV.

        One that has shown it before goes on decoding.
        """
        if not batch.admitted:
            super().empty(batch, now_ns, lane_index)
            return
        self.begin(batch, now_ns)
        finished: list[Answer] = []
        for request in batch.admitted:
            answer = self.answers[request.id]
            if answer.shown:
                self.lanes[lane_index].join(answer)
            else:
                self._prompt_done(answer, now_ns, lane_index, finished)
        self._barren_steps = 0
        self._close(batch, 1, 0, finished, lane_index)
