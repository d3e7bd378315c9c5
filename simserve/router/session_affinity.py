"""Sticky sessions: every turn of a session goes where its first turn went.

What cookie or header affinity of a load balancer does. A session's first turn, a request without a session,
and a turn whose replica has too many requests go to the least outstanding requests, and the session with it.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from simserve.core import Request
from simserve.router.base import ROUTERS, StateParams, Target
from simserve.router.ties import Rotation

NO_SESSIONS = "the trace has no sessions: session affinity has no effect"


class SessionAffinityParams(StateParams):
    """Settings of sticky sessions."""

    max_outstanding_requests: int | None = Field(
        default=None,
        ge=1,
        description="Move a session whose replica has this many requests outstanding; default: never.",
    )


@ROUTERS.register("session_affinity")
class SessionAffinityRouter:
    """The session's replica, else the least outstanding requests."""

    Params = SessionAffinityParams

    def __init__(
        self, params: SessionAffinityParams, *, seed: int, sessions: Sequence[int] | None = None
    ) -> None:
        """Nothing is random; `sessions` by request id, None: nobody has one."""
        self.refresh_ns = params.refresh_ns
        self.assumptions = () if sessions is not None else (NO_SESSIONS,)
        self._most = params.max_outstanding_requests
        self._sessions = sessions
        self._home: dict[int, int] = {}
        self._rotation = Rotation()

    def choose(self, request: Request, targets: Sequence[Target], now_ns: int) -> int:
        """Return the session's replica, or give it one."""
        session = None if self._sessions is None else self._sessions[request.id]
        if session is not None and session in self._home:
            home = self._home[session]
            if self._most is None or targets[home].outstanding_requests < self._most:
                return home
        chosen = self._rotation.smallest([target.outstanding_requests for target in targets])
        if session is not None:
            self._home[session] = chosen
        return chosen
