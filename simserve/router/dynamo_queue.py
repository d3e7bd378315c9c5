"""The queue of Dynamo's router: requests wait here, not at a worker, while every worker has much to compute.

A worker is busy while the prompt tokens that it has in flight exceed `router_queue_threshold` times its
max_num_batched_tokens. A request is held if all are busy, or if others are held already. Whenever a prompt is
computed or a request ends, held ones go on, best key first, for as long as not all workers are busy. Follows
kv-router's scheduling/queue.rs and policy_queue.rs (sources of 2026). Left out: strict priorities, classes
with queues of their own, limits of the queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import Literal

from simserve.core import Request
from simserve.router.base import Target
from simserve.router.dynamo_state import Active
from simserve.units import NS_PER_S

QueuePolicy = Literal["fcfs", "lcfs", "wspt"]


class RouterQueue:
    """Held requests, in the order of the queue policy."""

    def __init__(self, threshold: float | None, policy: QueuePolicy) -> None:
        """`threshold` in token budgets of one step; None: nobody is held."""
        self._threshold = threshold
        self._policy: QueuePolicy = policy
        self._heap: list[tuple[float, int, Request]] = []
        self._arrived = 0

    def holds(self, actives: Sequence[Active], targets: Sequence[Target]) -> bool:
        """Return whether a request that arrives now has to wait."""
        return self._threshold is not None and (bool(self._heap) or self._all_busy(actives, targets))

    def put(self, request: Request, cached_tokens: int, now_ns: int) -> None:
        """Hold a request; `cached_tokens` is the most that any worker has of its prompt."""
        self._arrived += 1
        heappush(self._heap, (self._key(request, cached_tokens, now_ns), self._arrived, request))

    def pop(self, actives: Sequence[Active], targets: Sequence[Target]) -> Request | None:
        """Return the request that goes on now, if any may."""
        if not self._heap or self._all_busy(actives, targets):
            return None
        return heappop(self._heap)[2]

    def withdraw(self, request: Request) -> None:
        """Take a request out."""
        self._heap = [entry for entry in self._heap if entry[2].id != request.id]
        heapify(self._heap)

    def _all_busy(self, actives: Sequence[Active], targets: Sequence[Target]) -> bool:
        assert self._threshold is not None
        for active, target in zip(actives, targets, strict=True):
            budget = target.max_num_batched_tokens
            if budget is None or active.prefill_tokens <= self._threshold * budget:
                return False
        return True

    def _key(self, request: Request, cached_tokens: int, now_ns: int) -> float:
        """Return the key of a request: the least goes first. A unit of priority is worth a second."""
        priority, arrival_s = max(0, request.priority), now_ns / NS_PER_S
        if self._policy == "fcfs":
            return arrival_s - priority
        if self._policy == "lcfs":
            return -arrival_s - priority
        return -(1 + priority) / max(1, request.prompt_tokens - cached_tokens)
