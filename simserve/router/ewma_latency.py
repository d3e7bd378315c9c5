"""Lowest recent latency, as an exponentially weighted moving average that forgets by half in `half_life_s`.

In the family of peak-EWMA balancing (Twitter Finagle, Linkerd): the average is multiplied by the requests in
flight and this one, so that a good replica is not buried before its latency shows it. A replica's average is
drawn towards that of all by one sample's weight: a replica without samples reads as an average one and not as
0, and one that was slow once is tried again when that is long ago. Before any sample, load alone decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from simserve.core import Request
from simserve.router.base import ROUTERS, InFlight, Rotation, Router, RouterParams, Target
from simserve.units import seconds_to_ns


class EwmaLatencyParams(RouterParams):
    """Settings of the moving average."""

    half_life_s: float = Field(
        default=10.0, gt=0, le=1e6, description="Time in which a sample loses half its weight."
    )
    signal: Literal["e2e", "ttft"] = Field(
        default="e2e", description="Latency that is averaged: to the last token, or to the first."
    )
    weigh_in_flight: bool = Field(
        default=True, description="Multiply the average by the requests in flight and the new one."
    )


class MovingAverage:
    """Latencies of one replica (or of all), each weighted by 2 ** (-age / half-life)."""

    __slots__ = ("_half_life_ns", "_time_ns", "_weight", "_weighted_ns")

    def __init__(self, half_life_ns: int) -> None:
        """Without samples."""
        self._half_life_ns = half_life_ns
        self._time_ns = 0
        self._weight = 0.0
        self._weighted_ns = 0.0

    def add(self, latency_ns: int, now_ns: int) -> None:
        """Take in a sample."""
        self._age(now_ns)
        self._weight += 1
        self._weighted_ns += latency_ns

    def mean_ns(self) -> float | None:
        """Return the average, or None without samples; it does not change with time alone."""
        return self._weighted_ns / self._weight if self._weight else None

    def towards_ns(self, prior_ns: float, now_ns: int) -> float:
        """Return the average of the samples and one more, made now, of `prior_ns`."""
        self._age(now_ns)
        return (self._weighted_ns + prior_ns) / (self._weight + 1)

    def _age(self, now_ns: int) -> None:
        factor = 0.5 ** ((now_ns - self._time_ns) / self._half_life_ns)
        self._time_ns = now_ns
        self._weight *= factor
        self._weighted_ns *= factor


@ROUTERS.register("ewma_latency")
class EwmaLatencyRouter(Router):
    """Smallest average latency, times the requests in flight there."""

    Params = EwmaLatencyParams
    hears_first_tokens = True
    hears_ends = True

    def __init__(self, params: EwmaLatencyParams, *, seed: int) -> None:
        """Nothing is random."""
        self._params = params
        self._half_life_ns = seconds_to_ns(params.half_life_s)
        self._in_flight = InFlight()
        self._all = MovingAverage(self._half_life_ns)
        self._each: list[MovingAverage] = []
        self._rotation = Rotation()

    def choose(self, request: Request, targets: Sequence[Target], now_ns: int) -> int:
        """Return the replica with the smallest product."""
        counts = self._in_flight.expect(len(targets))
        while len(self._each) < len(targets):
            self._each.append(MovingAverage(self._half_life_ns))
        chosen = self._rotation.smallest(self._costs(counts, now_ns))
        self._in_flight.sent(request, chosen)
        return chosen

    def first_token(self, request: Request, now_ns: int) -> None:
        """A first token came back."""
        if self._params.signal == "ttft":
            self._sample(request, now_ns)

    def ended(self, request: Request, now_ns: int) -> None:
        """A whole answer came back, or a refusal, which takes no time and says nothing about it."""
        if self._params.signal == "e2e" and now_ns > request.arrival_ns:
            self._sample(request, now_ns)
        self._in_flight.ended(request)

    def _sample(self, request: Request, now_ns: int) -> None:
        latency_ns = now_ns - request.arrival_ns
        self._each[self._in_flight.target_of(request)].add(latency_ns, now_ns)
        self._all.add(latency_ns, now_ns)

    def _costs(self, counts: list[int], now_ns: int) -> list[float]:
        usual_ns = self._all.mean_ns()
        if usual_ns is None:
            return [float(count) for count in counts]
        averages = [average.towards_ns(usual_ns, now_ns) for average in self._each]
        if not self._params.weigh_in_flight:
            return averages
        return [average * (count + 1) for average, count in zip(averages, counts, strict=True)]
