"""The replica with the least of something: requests, tokens, queue or KV. Ties go to the next in turn.

`least_outstanding_requests` is what load balancers call least connections; `shortest_queue` and `least_kv`
read what vLLM publishes as num_requests_waiting and kv_cache_usage_perc. With a refresh interval all arrivals
between two refreshes see the same numbers, and follow each other to the same replica.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from simserve.core import Request
from simserve.router.base import ROUTERS, StateParams, Target
from simserve.router.ties import Rotation


class _Least(ABC):
    """Chooses the target with the smallest load."""

    Params = StateParams

    def __init__(self, params: StateParams, *, seed: int) -> None:
        """Nothing is random."""
        self.refresh_ns = params.refresh_ns
        self._rotation = Rotation()

    def choose(self, request: Request, targets: Sequence[Target], now_ns: int) -> int:
        """Return the target with the smallest load."""
        return self._rotation.smallest([self.load(target, now_ns) for target in targets])

    @abstractmethod
    def load(self, target: Target, now_ns: int) -> float:
        """Return what is compared."""


@ROUTERS.register("least_outstanding_requests")
class LeastOutstandingRequestsRouter(_Least):
    """Fewest requests in queue and running (least connections)."""

    def load(self, target: Target, now_ns: int) -> float:
        """Return the outstanding requests."""
        return target.outstanding_requests


@ROUTERS.register("least_outstanding_tokens")
class LeastOutstandingTokensRouter(_Least):
    """Fewest tokens: prompts of all outstanding requests and what they have produced by now."""

    def load(self, target: Target, now_ns: int) -> float:
        """Return the outstanding tokens."""
        return target.outstanding_tokens(now_ns)


@ROUTERS.register("shortest_queue")
class ShortestQueueRouter(_Least):
    """Fewest requests in the scheduler's waiting queue."""

    def load(self, target: Target, now_ns: int) -> float:
        """Return the waiting requests."""
        return target.waiting_requests


@ROUTERS.register("least_kv")
class LeastKvRouter(_Least):
    """Smallest share of KV blocks held by requests."""

    def load(self, target: Target, now_ns: int) -> float:
        """Return the share of KV blocks in use."""
        return target.kv_use(now_ns)
