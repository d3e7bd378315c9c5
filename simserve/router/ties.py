"""Which of several equally good replicas: the next one in turn, so that an idle fleet is filled evenly."""

from __future__ import annotations

from collections.abc import Sequence


class Rotation:
    """Finds the smallest value; among equals the first one after the last choice, in cyclic order."""

    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last = -1

    def smallest(self, values: Sequence[float]) -> int:
        """Return the index of the smallest value and remember it."""
        smallest = min(values)
        try:
            self.last = values.index(smallest, self.last + 1)
        except ValueError:
            self.last = values.index(smallest)
        return self.last
