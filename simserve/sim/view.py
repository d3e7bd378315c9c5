"""A replica as a router with a refresh interval sees it: as it was at the last multiple of the interval.

A view costs no events. It is brought up to date when somebody looks, and before anything in the replica
changes; between two changes the state of any instant can be computed, so it is exactly that of the refresh,
and fast-forward and stepping show the same. A refresh comes before everything else of its instant.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from simserve.core import Request

if TYPE_CHECKING:
    from simserve.sim.replica import Replica


class View:
    """What a router may see (`router.base.Target`), as of `instant_ns`."""

    def __init__(self, replica: Replica, refresh_ns: int) -> None:
        """Starts with an empty replica at time 0; refreshed every `refresh_ns`."""
        self._replica = replica
        self._refresh_ns = refresh_ns
        self.instant_ns = 0
        self.block_size = replica.block_size
        self.kv_blocks = replica.kv_blocks
        self.max_num_batched_tokens = replica.max_num_batched_tokens
        self.outstanding_requests = 0
        self.waiting_requests = 0
        self.running_requests = 0
        self._tokens = 0
        self._kv_use = 0.0

    def catch_up(self, now_ns: int) -> None:
        """Take the state of the last refresh up to now; nothing in the replica has changed since."""
        instant_ns = now_ns - now_ns % self._refresh_ns
        if instant_ns <= self.instant_ns:
            return
        replica = self._replica
        self.instant_ns = instant_ns
        self.outstanding_requests = replica.outstanding_requests
        self._tokens = replica.tokens_at(instant_ns, passed=False)
        self._kv_use = replica.kv_use_at(instant_ns, passed=False)
        self.waiting_requests = replica.waiting_requests
        self.running_requests = replica.running_requests

    def outstanding_tokens(self, now_ns: int) -> int:
        """Return the outstanding tokens as of the last refresh."""
        return self._tokens

    def kv_use(self, now_ns: int) -> float:
        """Return the share of KV blocks held as of the last refresh."""
        return self._kv_use

    def cached_tokens(self, request: Request, now_ns: int) -> int:
        """Return what the prefix cache holds now: engines publish its changes as they happen."""
        return self._replica.cached_tokens(request, now_ns)

    def cached_below(self, request: Request, now_ns: int) -> Mapping[str, int]:
        """Return what the KV tiers hold now after that."""
        return self._replica.cached_below(request, now_ns)
