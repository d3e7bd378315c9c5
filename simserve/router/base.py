"""The contract of a router: which replica gets an arriving request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pydantic import BaseModel, ConfigDict

from simserve.core import Request
from simserve.registry import Registry


class RouterParams(BaseModel):
    """Base of every router's settings: frozen, unknown names refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Target(Protocol):
    """What a router may see of a replica."""

    @property
    def outstanding_requests(self) -> int:
        """Requests given to the replica and not finished."""
        ...

    def outstanding_tokens(self, now_ns: int) -> int:
        """Prompt and output tokens, as far as known now, of the outstanding requests."""
        ...


class Router(Protocol):
    """Chooses a replica for each arrival; must be deterministic given its seed."""

    def choose(self, request: Request, targets: Sequence[Target], now_ns: int) -> int:
        """Return the index of the target that gets `request`."""
        ...


ROUTERS: Registry[type] = Registry("router", "simserve.router")
