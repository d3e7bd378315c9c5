"""What a router knows without asking anybody: where it sent each request, and which have come back."""

from __future__ import annotations

from simserve.core import Request


class InFlight:
    """Requests in flight per target."""

    __slots__ = ("_target", "counts")

    def __init__(self) -> None:
        self.counts: list[int] = []
        """Requests in flight by target."""
        self._target: dict[int, int] = {}

    def expect(self, targets: int) -> list[int]:
        """Return the counts, one per target."""
        while len(self.counts) < targets:
            self.counts.append(0)
        return self.counts

    def sent(self, request: Request, target: int) -> None:
        """Count a request as in flight."""
        self._target[request.id] = target
        self.counts[target] += 1

    def target_of(self, request: Request) -> int:
        """Return where a request in flight is."""
        return self._target[request.id]

    def ended(self, request: Request) -> int:
        """Count a request as done; return where it was."""
        target = self._target.pop(request.id)
        self.counts[target] -= 1
        return target
