"""A replica at random, and the better of two at random (Mitzenmacher 2001)."""

from __future__ import annotations

import random
from collections.abc import Sequence

from simserve.core import Request
from simserve.router.base import ROUTERS, RouterParams, StateParams, Target


@ROUTERS.register("random")
class RandomRouter:
    """Uniformly random, seeded."""

    Params = RouterParams

    def __init__(self, params: RouterParams, *, seed: int) -> None:
        """`seed` fixes the sequence of choices."""
        self._random = random.Random(seed)

    def choose(self, request: Request, targets: Sequence[Target], now_ns: int) -> int:
        """Return any target."""
        return self._random.randrange(len(targets))


@ROUTERS.register("power_of_two")
class PowerOfTwoRouter:
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
