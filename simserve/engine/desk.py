"""A router at work: the replicas among which it chooses, as it may see them."""

from __future__ import annotations

from collections.abc import Sequence

from simserve.core import Request
from simserve.engine.replica import Replica
from simserve.engine.view import View
from simserve.router.base import Router, Target


class Desk:
    """One router and its replicas; a router of one replica is never asked."""

    def __init__(self, router: Router, replicas: Sequence[Replica]) -> None:
        """Replicas get a view of their own if the router sees them as of its last refresh."""
        self._router = router
        self._refresh_ns: int = getattr(router, "refresh_ns", 0)
        routed = len(replicas) > 1
        self._tell_first_token = getattr(router, "first_token", None) if routed else None
        self._tell_ended = getattr(router, "ended", None) if routed else None
        self.replace(replicas)

    def replace(self, replicas: Sequence[Replica]) -> None:
        """Choose among these replicas from now on (only routers without a memory of replicas stand that)."""
        self.replicas = list(replicas)
        self._views: list[View] = []
        if self._refresh_ns and len(replicas) > 1:
            for replica in replicas:
                replica.view = replica.view or View(replica, self._refresh_ns)
                self._views.append(replica.view)
        self._targets: Sequence[Target] = self._views or self.replicas

    def choose(self, request: Request, now_ns: int) -> Replica:
        """Return the replica that gets the request."""
        if len(self.replicas) == 1:
            return self.replicas[0]
        for view in self._views:
            view.catch_up(now_ns)
        return self.replicas[self._router.choose(request, self._targets, now_ns)]

    def first_token(self, request: Request, now_ns: int) -> None:
        """Tell the router of a request's first token."""
        if self._tell_first_token is not None:
            self._tell_first_token(request, now_ns)

    def ended(self, request: Request, now_ns: int) -> None:
        """Tell the router that a request has ended."""
        if self._tell_ended is not None:
            self._tell_ended(request, now_ns)
