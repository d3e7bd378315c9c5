"""Replicas that change sides: when one side's queue is long and the other's is not, a replica moves over.

It gets no new requests, ends those it has (and keeps prompts until they were read), and after a while works
on the other side. One moves at a time; each side keeps at least one. The queues are looked at now and then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from simpy.events import Timeout

from simserve.core import Batch, Request
from simserve.core.request import KvMoved, PrefillRequest
from simserve.sim.decode_batch import Answer
from simserve.sim.outputs import Books
from simserve.sim.pace.pipeline import PipelineReplica
from simserve.sim.pace.rank import Rank
from simserve.sim.replica import Replica
from simserve.sim.specs import SwitchRule

if TYPE_CHECKING:
    from simserve.sim.cluster import Cluster
    from simserve.sim.disagg.cluster import SplitCluster


# The books of a replica in a split: a request may be taken up without a step, its first token known.


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


# A replica in a prefill/decode split: it hears of KV that moved, and tells of prompts that it computes.


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


OTHER = {"prefill": "decode", "decode": "prefill"}
BETWEEN = "between"
"""Role of a replica that is on its way."""


class RoleSwitch:
    """Looks at the queues and moves replicas."""

    def __init__(self, cluster: SplitCluster, rule: SwitchRule) -> None:
        """Begins to look after the first interval."""
        self._cluster = cluster
        self._rule = rule
        self._mover: SplitReplica | None = None
        """The replica that ends its requests before it changes sides."""
        self._wanted = ""
        self._away = False
        self.changes = 0
        self._look_later()

    def _look_later(self) -> None:
        Timeout(self._cluster.env, self._rule.check_ns).callbacks.append(lambda _: self._look())

    def _look(self) -> None:
        """Compare the queues; look again unless nothing else is left to happen."""
        if not self._away:
            for role, other in OTHER.items():
                if self._long(role) and self._short(other) and len(self._cluster.with_role(other)) > 1:
                    self._begin(other)
                    break
        if self._cluster.env.peek() != float("inf"):
            self._look_later()

    def _long(self, role: str) -> bool:
        replicas = self._cluster.with_role(role)
        return sum(r.waiting_requests for r in replicas) >= self._rule.queue * len(replicas)

    def _short(self, role: str) -> bool:
        replicas = self._cluster.with_role(role)
        return sum(r.waiting_requests for r in replicas) <= self._rule.idle_queue * len(replicas)

    def _begin(self, role: str) -> None:
        """Take the replica with the fewest requests off its side."""
        replicas = self._cluster.with_role(role)
        mover = min(replicas, key=lambda replica: (replica.outstanding_requests, replica.rank))
        assert isinstance(mover, SplitReplica)
        self._away, self._mover, self._wanted = True, mover, OTHER[role]
        self._cluster.move(mover, BETWEEN)
        self.drained()

    def drained(self) -> None:
        """Let the replica go over if it has nothing left to do (called whenever it may have)."""
        mover = self._mover
        if mover is None or mover.outstanding_requests or self._cluster.has_business(mover):
            return
        self._mover = None
        Timeout(self._cluster.env, self._rule.switch_ns).callbacks.append(lambda _: self._arrive(mover))

    def _arrive(self, replica: SplitReplica) -> None:
        self.changes += 1
        self._away = False
        self._cluster.move(replica, self._wanted)
