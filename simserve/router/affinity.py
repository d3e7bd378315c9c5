"""Sticky sessions: every turn of a session goes where its first turn went.

What cookie or header affinity of a load balancer does. A session's first turn, a request without a session,
and a turn whose replica has too many requests go to the least outstanding requests, and the session with it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from math import ceil
from typing import Any, Literal

from pydantic import Field

from simserve.core import Request
from simserve.kvcache import Content
from simserve.router.base import (
    ROUTERS,
    UNKNOWN_CONTENT,
    Known,
    PromptBlocks,
    Rotation,
    Router,
    StateParams,
    Target,
)

# Consistent hashing: a ring of virtual nodes, keyed by session or by the beginning of the prompt.
#
# The ring is that of Karger et al. (1997). With `load_bound` c a replica takes at most c times the mean load,
# the new request included; what it cannot take goes on along the ring (Mirrokni, Thorup, Zadimoghaddam 2018).


class ConsistentHashParams(StateParams):
    """Settings of the ring."""

    hash_on: Literal["session", "prefix"] = Field(
        default="session", description="What requests must share to meet: the session, or the first tokens."
    )
    prefix_tokens: int = Field(
        default=256, ge=1, description="Tokens of the prompt that are hashed (whole blocks, at least one)."
    )
    virtual_nodes: int = Field(
        default=100, ge=1, le=100_000, description="Points of each replica on the ring."
    )
    load_bound: float | None = Field(
        default=None, ge=1, description="Most load of a replica as a multiple of the mean; default: no limit."
    )


@ROUTERS.register("consistent_hash")
class ConsistentHashRouter(Router):
    """The first replica on the ring after the request's hash that may take it."""

    Params = ConsistentHashParams

    def __init__(
        self,
        params: ConsistentHashParams,
        *,
        seed: int,
        content: Content | None = None,
        block_size: int = 16,
        sessions: Sequence[int] | None = None,
    ) -> None:
        """`seed` fixes the ring; a request without session or known prefix is hashed by its id."""
        self.refresh_ns = params.refresh_ns
        self._params = params
        self._seed = seed
        self._blocks = max(1, params.prefix_tokens // block_size)
        self._prompts = PromptBlocks(content, block_size)
        self._sessions = sessions
        self._points: list[tuple[int, int]] = []
        self.assumptions: tuple[str, ...] = ()
        if params.hash_on == "session" and sessions is None:
            self.assumptions = ("the trace has no sessions: every request is hashed on its own",)
        elif params.hash_on == "prefix" and content is None:
            self.assumptions = (UNKNOWN_CONTENT,)

    @classmethod
    def made(cls, params: Any, seed: int, known: Known) -> Router:
        """Return one that knows what the trace says of prompts and sessions."""
        return cls(
            params, seed=seed, content=known.content, block_size=known.block_size, sessions=known.sessions
        )

    def choose(self, request: Request, targets: Sequence[Target], now_ns: int) -> int:
        """Return the replica that the ring gives."""
        if not self._points:
            self._points = self._ring(len(targets))
        order = self._from(self._hash(self._key(request)))
        if self._params.load_bound is None:
            return next(order)
        loads = [target.outstanding_requests for target in targets]
        most = ceil(self._params.load_bound * (sum(loads) + 1) / len(targets))
        return next(index for index in order if loads[index] < most)

    def _key(self, request: Request) -> str:
        if self._params.hash_on == "session" and self._sessions is not None:
            return f"session {self._sessions[request.id]}"
        keys = self._prompts.cut(request).keys if self._params.hash_on == "prefix" else []
        if keys:
            return f"prefix {keys[min(self._blocks, len(keys)) - 1]}"
        return f"request {request.id}"

    def _ring(self, replicas: int) -> list[tuple[int, int]]:
        names = ((index, node) for index in range(replicas) for node in range(self._params.virtual_nodes))
        return sorted((self._hash(f"replica {index} node {node}"), index) for index, node in names)

    def _from(self, point: int) -> Iterator[int]:
        """Yield replicas in ring order from `point` on; one load of them is always below the bound."""
        start = bisect_right(self._points, (point, -1))
        for offset in range(len(self._points)):
            yield self._points[(start + offset) % len(self._points)][1]

    def _hash(self, text: str) -> int:
        return int.from_bytes(blake2b(f"{self._seed} {text}".encode(), digest_size=8).digest(), "big")


NO_SESSIONS = "the trace has no sessions: session affinity has no effect"


class SessionAffinityParams(StateParams):
    """Settings of sticky sessions."""

    max_outstanding_requests: int | None = Field(
        default=None,
        ge=1,
        description="Move a session whose replica has this many requests outstanding; default: never.",
    )


@ROUTERS.register("session_affinity")
class SessionAffinityRouter(Router):
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

    @classmethod
    def made(cls, params: Any, seed: int, known: Known) -> Router:
        """Return one that knows what the trace says of prompts and sessions."""
        return cls(params, seed=seed, sessions=known.sessions)

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
