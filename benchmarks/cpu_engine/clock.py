"""What a served second is: the wall's, or one of CPU time of the thread that serves.

By the wall everything counts that the machine does beside. By CPU time a step takes what its own thread
computed, however long other programs kept it from the core, and waiting for an arrival is skipped.
"""

from __future__ import annotations

import time


class WallClock:
    """The wall's."""

    def now(self) -> float:
        """Return seconds since some moment."""
        return time.perf_counter()

    def wait(self, seconds: float) -> None:
        """Let time pass without work."""
        time.sleep(max(0.0, seconds))


class CpuClock:
    """CPU time of the calling thread, put forward where it would wait; for engines of one thread."""

    def __init__(self) -> None:
        """Begin at zero."""
        self._waited = 0.0

    def now(self) -> float:
        """Return seconds since some moment."""
        return time.thread_time() + self._waited

    def wait(self, seconds: float) -> None:
        """Let time pass without work."""
        self._waited += max(0.0, seconds)


Clock = WallClock | CpuClock
