"""The replica with the least of something: requests, tokens, queue or KV. Ties go to the next in turn.

`least_outstanding_requests` is what load balancers call least connections; `shortest_queue` and `least_kv`
read what vLLM publishes as num_requests_waiting and kv_cache_usage_perc. With a refresh interval all arrivals
between two refreshes see the same numbers, and follow each other to the same replica.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Sequence

from pydantic import Field

from simserve.core import Request
from simserve.errors import ScenarioError
from simserve.router.base import ROUTERS, Rotation, Router, RouterParams, StateParams, Target

# Each replica in turn.


@ROUTERS.register("round_robin")
class RoundRobinRouter(Router):
    """Replica 0, 1, 2 ... and again."""

    Params = RouterParams

    def __init__(self, params: RouterParams, *, seed: int) -> None:
        """No settings."""
        self._next = -1

    def choose(self, request: Request, targets: Sequence[Target], now_ns: int) -> int:
        """Return the target after the last one."""
        self._next = (self._next + 1) % len(targets)
        return self._next


# A replica at random, and the better of two at random (Mitzenmacher 2001).


@ROUTERS.register("random")
class RandomRouter(Router):
    """Uniformly random, seeded."""

    Params = RouterParams

    def __init__(self, params: RouterParams, *, seed: int) -> None:
        """`seed` fixes the sequence of choices."""
        self._random = random.Random(seed)

    def choose(self, request: Request, targets: Sequence[Target], now_ns: int) -> int:
        """Return any target."""
        return self._random.randrange(len(targets))


@ROUTERS.register("power_of_two")
class PowerOfTwoRouter(Router):
    """Of two replicas drawn at random, the one with fewer outstanding requests (ties: the first drawn)."""

    Params = StateParams

    def __init__(self, params: StateParams, *, seed: int) -> None:
        """`seed` fixes the sequence of draws."""
        self.refresh_ns = params.refresh_ns
        self._random = random.Random(seed)

    def choose(self, request: Request, targets: Sequence[Target], now_ns: int) -> int:
        """Return the less loaded of two."""
        if len(targets) == 1:
            return 0
        first = self._random.randrange(len(targets))
        second = self._random.randrange(len(targets) - 1)
        second += second >= first
        if targets[second].outstanding_requests < targets[first].outstanding_requests:
            return second
        return first


class _Least(Router):
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


# Long prompts on replicas of their own, so that short ones do not wait behind them.
#
# The last `long_replicas` replicas take prompts of at least `threshold_tokens`, the others the rest; inside a
# group the fewest outstanding requests decide.


class LengthThresholdParams(StateParams):
    """Settings of the split."""

    threshold_tokens: int = Field(
        default=8192, ge=1, description="Prompt tokens from which on a request counts as long."
    )
    long_replicas: int = Field(
        default=1, ge=1, description="Replicas, counted from the last, for long prompts."
    )


@ROUTERS.register("length_threshold")
class LengthThresholdRouter(Router):
    """Least outstanding requests among the replicas for this length."""

    Params = LengthThresholdParams

    def __init__(self, params: LengthThresholdParams, *, seed: int) -> None:
        """Nothing is random."""
        self.refresh_ns = params.refresh_ns
        self._params = params
        self._short, self._long = Rotation(), Rotation()

    def choose(self, request: Request, targets: Sequence[Target], now_ns: int) -> int:
        """Return a replica of the group; raises ScenarioError if no replica is left for short prompts."""
        first_long = len(targets) - self._params.long_replicas
        if first_long < 1:
            raise ScenarioError(
                f"router length_threshold: long_replicas = {self._params.long_replicas} of {len(targets)} "
                f"replicas, allowed: 1 to {len(targets) - 1}: at least one must take short prompts"
            )
        loads = [target.outstanding_requests for target in targets]
        if request.prompt_tokens < self._params.threshold_tokens:
            return self._short.smallest(loads[:first_long])
        return first_long + self._long.smallest(loads[first_long:])
