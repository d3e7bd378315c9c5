"""Ranks for what several GPUs do together: what a group of them offers, and the group that is at hand.

Processes of our own (`own_ranks`), or those that torchrun has started (`launched_ranks`). Either way every
rank answers with its samples, and the slowest rank's time counts, sample by sample.
"""

from __future__ import annotations

from typing import Protocol

from simserve.profiler.launched_ranks import LaunchedRanks, Meeting, launch
from simserve.profiler.need import CannotTime
from simserve.profiler.own_ranks import OwnRanks
from simserve.profiler.rank_work import Order
from simserve.profiler.timing import Timing


class Ranks(Protocol):
    """Ranks that carry out orders."""

    count: int

    def measure(self, order: Order) -> tuple[Timing, float]:
        """Return the slowest rank's time and the worst error; raises `RuntimeError` if a rank fails."""
        ...

    def close(self) -> None:
        """Let them go."""
        ...


class RankPool:
    """At most one group of ranks at a time, kept while as many are asked for."""

    def __init__(self) -> None:
        """Start none yet."""
        self._running: Ranks | None = None
        self._meeting: Meeting | None = None
        self._cannot: dict[tuple[int, str], str] = {}

    def get(self, count: int, device: str) -> Ranks:
        """Return `count` ranks on `device` ("cuda" or "cpu").

        Raises `CannotTime` if they cannot start; so many are then not tried again.
        """
        if why := self._cannot.get((count, device)):
            raise CannotTime(why)
        if self._running is None or self._running.count != count:
            self.close()
            try:
                self._running = self._open(count, device)
            except CannotTime as error:
                self._cannot[count, device] = str(error)
                raise
        return self._running

    def close(self) -> None:
        """End the ranks, if any run."""
        running, self._running = self._running, None
        if running is not None:
            running.close()

    def _open(self, count: int, device: str) -> Ranks:
        place = launch()
        if place is None:
            return OwnRanks(count, device)
        self._meeting = self._meeting or Meeting(place, device)
        return LaunchedRanks(self._meeting, count)
