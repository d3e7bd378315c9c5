"""Step boundaries: SimPy events that sort after every other event of their instant.

Arrivals that carry the time stamp of a boundary are seen by the decision made there, whatever the order in
which events were scheduled. Boundaries of several replicas at one instant are processed in the order of the
replicas' ranks. Both are what makes fast-forward equal to stepping on traces with coarse time stamps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from simpy import Environment
from simpy.events import Event, EventPriority

_FIRST_RANK = 2
"""SimPy's own priorities are 0 (urgent) and 1 (normal)."""


def order_of(rank: int) -> EventPriority:
    """Return the place of a replica's boundaries among the events of one instant."""
    return EventPriority(_FIRST_RANK + rank)


class Clock(Environment):
    """A SimPy environment whose time is an integer number of nanoseconds, read without a Python call."""

    __slots__ = ("_now",)

    if TYPE_CHECKING:

        @property
        def now(self) -> int:
            """Present time in ns."""
            ...


if not TYPE_CHECKING:
    Clock.now = Clock.__dict__["_now"]  # SimPy's own `now` is a property over the same attribute


class Boundary(Event):
    """The end of a step (or of a wait) of a replica, `delay_ns` from now."""

    _value = None
    _ok = True

    def __init__(self, env: Clock, order: EventPriority, delay_ns: int) -> None:
        """Schedules itself; `order` is that of the replica's rank."""
        self.env = env
        self.callbacks = []
        env.schedule(self, order, delay_ns)

    def bring_forward(self, order: EventPriority, delay_ns: int) -> Boundary:
        """Let those that wait for this boundary wake up `delay_ns` from now; return what they wait for now.

        The event itself stays in SimPy's heap and does nothing. This costs a third of an interrupt.
        """
        sooner = Boundary(self.env, order, delay_ns)
        sooner.callbacks, self.callbacks = self.callbacks, []
        return sooner


class WakeUp(Event):
    """The end of an idle wait without a known end: `fire` schedules it for the present instant."""

    def fire(self, order: EventPriority) -> None:
        """Let the waiting replica decide after all other events of this instant."""
        self._value = None
        self._ok = True
        self.env.schedule(self, order)


class Front:
    """How far the boundaries of the present instant have been processed, over all replicas.

    A replica that sleeps through a run of steps has boundaries that are no events. This tells, for an
    arrival at just such an instant, whether that boundary would already have been processed.
    """

    __slots__ = ("now_ns", "rank")

    def __init__(self) -> None:
        self.now_ns = -1
        self.rank = -1

    def reach(self, now_ns: int, rank: int) -> None:
        """Record that the boundary of `rank` at `now_ns` is being processed."""
        if now_ns != self.now_ns:
            self.now_ns = now_ns
            self.rank = rank
        elif rank > self.rank:
            self.rank = rank

    def passed(self, now_ns: int, rank: int) -> bool:
        """Return True if a boundary of `rank` at `now_ns` counts as processed."""
        return now_ns == self.now_ns and self.rank > rank
