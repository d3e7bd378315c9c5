"""The waiting queue of vLLM: first come first served, or a heap by priority."""

from __future__ import annotations

import heapq
from collections import deque
from typing import Protocol

from simserve.core import Request


class WaitingQueue(Protocol):
    """Requests that wait to be admitted."""

    def __len__(self) -> int: ...

    def add(self, request: Request) -> None:
        """Add an arriving request."""
        ...

    def put_back(self, request: Request) -> None:
        """Return a preempted request."""
        ...

    def head(self) -> Request:
        """Return the request that is next, without removing it."""
        ...

    def pop(self) -> Request:
        """Remove and return the head."""
        ...

    def remove(self, request: Request, /) -> None:
        """Remove a request that ended while it waited."""
        ...


class FcfsQueue(deque[Request]):
    """Arrivals go to the end, preempted requests to the front."""

    def add(self, request: Request) -> None:
        """Add an arriving request."""
        self.append(request)

    def put_back(self, request: Request) -> None:
        """Return a preempted request to the front."""
        self.appendleft(request)

    def head(self) -> Request:
        """Return the oldest."""
        return self[0]

    def pop(self) -> Request:
        """Remove and return the oldest."""
        return self.popleft()


def priority_key(request: Request) -> tuple[int, int, int]:
    """Return vLLM's order: lower priority value first, then arrival, then id."""
    return (request.priority, request.arrival_ns, request.id)


class PriorityQueue:
    """A heap on (priority, arrival, id); preempted requests take their place by the same key."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, int, int], Request]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, request: Request) -> None:
        """Add a request in its place."""
        heapq.heappush(self._heap, (priority_key(request), request))

    put_back = add

    def head(self) -> Request:
        """Return the request with the smallest key."""
        return self._heap[0][1]

    def pop(self) -> Request:
        """Remove and return the request with the smallest key."""
        return heapq.heappop(self._heap)[1]

    def remove(self, request: Request, /) -> None:
        """Remove a request that ended while it waited."""
        self._heap.remove((priority_key(request), request))
        heapq.heapify(self._heap)
