"""A run: consecutive equal steps that nothing inside the replica can change, and how far they are by now."""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

from simserve.engine.decode_table import DecodePage


class Run(NamedTuple):
    """Equal decode steps in progress: entries [offset, offset + steps] of a page."""

    start_ns: int
    page: DecodePage
    offset: int
    steps: int

    def end_ns(self, steps: int) -> int:
        """Return when the first `steps` steps end."""
        times = self.page.cumulative_ns
        return self.start_ns + times[self.offset + steps] - times[self.offset]

    def steps_begun(self, now_ns: int, passed: bool) -> int:
        """Return the steps up to the one in flight; one that ends just now is over only if `passed`."""
        times, offset = self.page.cumulative_ns, self.offset
        target = times[offset] + now_ns - self.start_ns
        index = bisect_left(times, target, offset + 1, offset + self.steps)
        if passed and times[index] == target:
            index += 1
        return min(index - offset, self.steps)

    def steps_done(self, now_ns: int, passed: bool) -> int:
        """Return the steps that are over; one that ends just now counts only if `passed`."""
        begun = self.steps_begun(now_ns, passed)
        return begun if passed and self.end_ns(begun) == now_ns else begun - 1
