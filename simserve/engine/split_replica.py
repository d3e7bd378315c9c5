"""A replica in a prefill/decode split: it hears of KV that moved, and tells of prompts that it computes."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from simserve.core import Batch, Request
from simserve.core.halves import KvMoved, PrefillRequest
from simserve.engine.pipeline import PipelineReplica
from simserve.engine.rank import Rank
from simserve.engine.replica import Replica
from simserve.engine.split_books import SplitBooks

if TYPE_CHECKING:
    from simserve.engine.cluster import Cluster
    from simserve.engine.split import SplitCluster


class SplitReplica(Replica):
    """Serves whole requests and halves."""

    split: SplitCluster
    """Set by the cluster."""
    books_of = SplitBooks

    def deliver(self, news: KvMoved) -> None:
        """Give news to the scheduler as an arrival would come: when it may see it, cutting a run short."""
        if self.view is not None:
            self.view.catch_up(self.env.now)
        self.tell(cast(Request, news))

    def turn(self, side: Cluster) -> None:
        """Change sides; nobody may be here."""
        assert isinstance(self.books, SplitBooks)
        self.books.turn(side)

    def forget(self, request: Request) -> None:
        """Strike off a request that failed while it waited for its KV."""
        answer = self.books.answers.pop(request.id)
        self.books.known_tokens -= request.prompt_tokens + answer.shown

    def step_ns(self, batch: Batch) -> int:
        """Return the duration of a step with prompt chunks, and tell what KV it makes."""
        duration_ns = super().step_ns(batch)
        start_ns = self.env.now
        for chunk in batch.chunks:
            if isinstance(chunk.request, PrefillRequest):
                self.split.chunk(chunk, start_ns, start_ns + duration_ns)
        return duration_ns

    def expect_news(self) -> None:
        """Let requests wait: for KV, or for room that others hold until their KV was read."""


class SplitPipelineReplica(SplitReplica, PipelineReplica):
    """The same with pipeline stages."""


class SplitRank(SplitReplica, Rank):
    """An attention rank of a group that steps together; its KV leaves after the whole prompt."""
