"""vLLM's internal load balancer for data-parallel engines, as one API server runs it.

Read in vLLM 0.33.0: a score of requests in flight and a penalty for queues on engines whose KV is more than
half full; engine counts come from the coordinator every 100 ms; the scan starts one engine further with every
request, so ties rotate. Before (0.15.1): waiting * 4 + running, the scan always starts with the first engine,
and only the count of waiting requests is raised locally until the next report. Left out: several API servers
(`client_count`), ranks asked for by the client, and the coordinator's silence while nothing changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from simserve.core import Request
from simserve.router.base import ROUTERS, InFlight, Router, StateParams, Target


class VllmDpParams(StateParams):
    """Settings of vLLM's internal balancer."""

    refresh_ms: float = Field(
        default=100.0,
        ge=0,
        le=3_600_000,
        allow_inf_nan=False,
        description="Interval between the coordinator's reports (stats_update_interval_ms).",
    )
    version: Literal["0.33", "0.15"] = Field(default="0.33", description="Release whose score is followed.")


@ROUTERS.register("vllm_dp")
class VllmDpRouter(Router):
    """Lowest score over the last reports and what was sent since."""

    Params = VllmDpParams
    hears_ends = True

    def __init__(self, params: VllmDpParams, *, seed: int) -> None:
        """Nothing is random."""
        self.refresh_ns = params.refresh_ns
        self._older = params.version == "0.15"
        self._in_flight = InFlight()
        self._report = -1
        """Number of the report that `_raised` adds to."""
        self._raised: list[int] = []
        """Requests sent to each engine since that report."""
        self._start = 0

    def choose(self, request: Request, targets: Sequence[Target], now_ns: int) -> int:
        """Return the engine with the lowest score, in scan order."""
        self._in_flight.expect(len(targets))
        report = now_ns // self.refresh_ns if self.refresh_ns else self._report + 1
        if report != self._report:
            self._report, self._raised = report, [0] * len(targets)
        order = [(self._start + offset) % len(targets) for offset in range(len(targets))]
        chosen = min(order, key=lambda index: self._score(index, targets[index], now_ns))
        self._raised[chosen] += 1
        if not self._older:
            self._start = (self._start + 1) % len(targets)
        self._in_flight.sent(request, chosen)
        return chosen

    def ended(self, request: Request, now_ns: int) -> None:
        """A request came back."""
        self._in_flight.ended(request)

    def _score(self, index: int, target: Target, now_ns: int) -> float:
        waiting = target.waiting_requests + self._raised[index]
        running = target.running_requests
        if self._older:
            return waiting * 4 + running
        score = max(self._in_flight.counts[index], waiting + running)
        if waiting:
            score += waiting * 6 * max(0.0, target.kv_use(now_ns) - 0.5)
        return score
