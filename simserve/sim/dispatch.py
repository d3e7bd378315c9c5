"""A router at work: the replicas among which it chooses, as it sees them, and the requests that it holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from simserve.core import Request
from simserve.router.base import HoldingRouter, Router, Target
from simserve.sim.replica import Replica
from simserve.sim.view import View

Send = Callable[[Request, Replica], None]
"""Sends a request to the replica that it was routed to."""


Hook = Callable[[Request, int], None]
"""Told of a request at a time in ns."""


class Desk:
    """One router and its replicas; a router of one replica is never asked, unless it holds requests back."""

    def __init__(self, router: Router, replicas: Sequence[Replica]) -> None:
        """Replicas get a view of their own if the router sees them as of its last refresh."""
        self._router = router
        self._holding = router if isinstance(router, HoldingRouter) and router.may_hold else None
        self._held: dict[int, Send] = {}
        """How each request that the router holds goes on, by id."""
        self._refresh_ns = router.refresh_ns
        self.replace(replicas)
        self._tell_first_token = router.first_token if self.asks and router.hears_first_tokens else None
        self._tell_ended = router.ended if self.asks and router.hears_ends else None

    def replace(self, replicas: Sequence[Replica]) -> None:
        """Choose among these replicas from now on (only routers without a memory of replicas stand that)."""
        self.replicas = list(replicas)
        self.asks = len(replicas) > 1 or self._holding is not None
        """Whether the router has any say."""
        self._views: list[View] = []
        if self._refresh_ns and self.asks:
            for replica in replicas:
                replica.view = replica.view or View(replica, self._refresh_ns)
                self._views.append(replica.view)
        self._targets: Sequence[Target] = self._views or self.replicas

    def choose(self, request: Request, now_ns: int) -> Replica | None:
        """Return the replica that gets the request; None: the router holds it, and `hold` must follow."""
        if not self.asks:
            return self.replicas[0]
        for view in self._views:
            view.catch_up(now_ns)
        index = self._router.choose(request, self._targets, now_ns)
        return None if index is None else self.replicas[index]

    def hold(self, request: Request, send: Send) -> None:
        """Remember how a held request goes on once the router lets it go."""
        self._held[request.id] = send

    def withdraw(self, request: Request) -> bool:
        """Forget a request that the router holds; return whether it did."""
        if self._held.pop(request.id, None) is None:
            return False
        assert self._holding is not None
        self._holding.withdraw(request)
        return True

    @property
    def first_token_hook(self) -> Hook | None:
        """`first_token`, or None if the router does not want to hear of it."""
        return self._tell_first_token if self._holding is None else self.first_token

    @property
    def ended_hook(self) -> Hook | None:
        """`ended`, or None if the router does not want to hear of it."""
        return self._tell_ended if self._holding is None else self.ended

    def place(self, request: Request, now_ns: int, send: Send) -> None:
        """Send a request where the router wants it: now, or when the router lets it go."""
        replica = self.choose(request, now_ns)
        if replica is None:
            self.hold(request, send)
        else:
            send(request, replica)

    def first_token(self, request: Request, now_ns: int) -> None:
        """Tell the router of a request's first token."""
        if self._tell_first_token is not None:
            self._tell_first_token(request, now_ns)
            if self._held:
                self._release(now_ns)

    def ended(self, request: Request, now_ns: int) -> None:
        """Tell the router that a request has ended."""
        if self._tell_ended is not None:
            self._tell_ended(request, now_ns)
            if self._held:
                self._release(now_ns)

    def _release(self, now_ns: int) -> None:
        """Send on what the router lets go; a request that is refused by that is told like any other."""
        assert self._holding is not None
        for view in self._views:
            view.catch_up(now_ns)
        while self._held:
            released = self._holding.release(self._targets, now_ns)
            if released is None:
                return
            request, index = released
            self._held.pop(request.id)(request, self.replicas[index])
