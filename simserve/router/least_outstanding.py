"""The replica with the least outstanding work, in requests or in tokens known so far.

The state is exact and of this instant; ties go to the replica after the last one chosen, so that an idle
fleet is filled in turn.
"""

from __future__ import annotations

from collections.abc import Sequence

from simserve.core import Request
from simserve.router.base import ROUTERS, RouterParams, Target


def _first_smallest(loads: list[int], last: int) -> int:
    """Return the index of the smallest load, the first one after `last` in cyclic order."""
    smallest = min(loads)
    try:
        return loads.index(smallest, last + 1)
    except ValueError:
        return loads.index(smallest)


@ROUTERS.register("least_outstanding_requests")
class LeastOutstandingRequestsRouter:
    """Fewest requests in queue and running (least connections)."""

    Params = RouterParams

    def __init__(self, params: RouterParams, *, seed: int) -> None:
        """No settings."""
        self._last = -1

    def choose(self, request: Request, targets: Sequence[Target], now_ns: int) -> int:
        """Return the target with the fewest outstanding requests."""
        self._last = _first_smallest([target.outstanding_requests for target in targets], self._last)
        return self._last


@ROUTERS.register("least_outstanding_tokens")
class LeastOutstandingTokensRouter:
    """Fewest tokens: prompts of all outstanding requests and what they have produced by now."""

    Params = RouterParams

    def __init__(self, params: RouterParams, *, seed: int) -> None:
        """No settings."""
        self._last = -1

    def choose(self, request: Request, targets: Sequence[Target], now_ns: int) -> int:
        """Return the target with the fewest outstanding tokens."""
        self._last = _first_smallest([target.outstanding_tokens(now_ns) for target in targets], self._last)
        return self._last
