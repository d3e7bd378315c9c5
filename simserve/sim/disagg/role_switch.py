"""Replicas that change sides: when one side's queue is long and the other's is not, a replica moves over.

It gets no new requests, ends those it has (and keeps prompts until they were read), and after a while works
on the other side. One moves at a time; each side keeps at least one. The queues are looked at now and then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simpy.events import Timeout

from simserve.sim.replica import Replica
from simserve.sim.specs import SwitchRule

if TYPE_CHECKING:
    from simserve.sim.disagg.cluster import SplitCluster

OTHER = {"prefill": "decode", "decode": "prefill"}
BETWEEN = "between"
"""Role of a replica that is on its way."""


class RoleSwitch:
    """Looks at the queues and moves replicas."""

    def __init__(self, cluster: SplitCluster, rule: SwitchRule) -> None:
        """Begins to look after the first interval."""
        self._cluster = cluster
        self._rule = rule
        self._mover: Replica | None = None
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

    def _arrive(self, replica: Replica) -> None:
        self.changes += 1
        self._away = False
        self._cluster.move(replica, self._wanted)
