"""Each replica in turn."""

from __future__ import annotations

from collections.abc import Sequence

from simserve.core import Request
from simserve.router.base import ROUTERS, RouterParams, Target


@ROUTERS.register("round_robin")
class RoundRobinRouter:
    """Replica 0, 1, 2 ... and again."""

    Params = RouterParams

    def __init__(self, params: RouterParams, *, seed: int) -> None:
        """No settings."""
        self._next = -1

    def choose(self, request: Request, targets: Sequence[Target], now_ns: int) -> int:
        """Return the target after the last one."""
        self._next = (self._next + 1) % len(targets)
        return self._next
