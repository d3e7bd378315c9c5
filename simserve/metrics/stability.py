"""Did the queue grow for as long as requests kept arriving?

An overloaded open system has no steady latency: every number depends on how long the run was. The rule is
ours and deliberately plain, so that a reader can check it by eye in the report's queue chart. It looks only
at arrivals and first schedulings, so it needs no timeline and no knowledge of the engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from simserve.core import Result, Status
from simserve.units import NS_PER_S

MIN_REQUESTS = 30
GROWTH = 1.3
BACKLOG_SHARE = 0.05
CHANCE = 2.0
"""Standard deviations: a queue at exactly full load ends a run above CHANCE * sqrt(arrivals) in one of twenty
if arrivals are Poisson (a reflected random walk)."""

RULE = (
    "Unstable if the mean number of waiting requests over the last third of the arrival period "
    f"exceeds {GROWTH} times that of each earlier third, and the requests still waiting when the last one "
    f"arrives are more than {BACKLOG_SHARE:.0%} of those that had been scheduled by then, or in a long run "
    f"more than chance explains: {CHANCE:g} * sqrt(arrivals), times the variation of the gaps between "
    "arrivals if above 1. Requests whose clients gave up before they were scheduled count as waiting. Not "
    f"judged for closed loops, for fewer than {MIN_REQUESTS} requests, or if all arrive at one instant."
)


@dataclass(frozen=True)
class Stability:
    """The verdict and the figures that it rests on."""

    verdict: str
    """`stable`, `unstable` or `not judged`."""
    reason: str
    waiting_by_third: tuple[float, float, float] | None = None
    """Mean waiting requests in each third of the arrival period."""
    backlog_requests: int | None = None
    """Waiting when the last request arrived."""
    backlog_share: float | None = None
    """Backlog / requests scheduled by then: the time to drain it, relative to the arrival period."""
    arrival_period_s: float | None = None


def judge(result: Result, closed_loop: bool = False) -> Stability:
    """Return whether the queue of `result` grew over the arrival period, by `RULE`."""
    if closed_loop:
        return Stability("not judged", "a closed loop never offers more than the system takes")
    queued = (result.arrival_ns >= 0) & (result.status != Status.REFUSED)
    arrival = result.arrival_ns[queued]
    if arrival.size < MIN_REQUESTS:
        return Stability("not judged", f"fewer than {MIN_REQUESTS} requests arrived")
    first, last = int(arrival.min()), int(arrival.max())
    if first == last:
        return Stability("not judged", "all requests arrived at one instant")
    scheduled = result.first_scheduled_ns[queued]
    left = np.where(scheduled >= 0, scheduled, np.iinfo(np.int64).max)
    edges = np.linspace(first, last, 4)
    thirds = tuple(_mean_waiting(arrival, left, a, b) for a, b in pairwise(edges))
    backlog = int(np.count_nonzero(left > last))
    share = backlog / max(arrival.size - backlog, 1)
    growing = thirds[2] > GROWTH * max(thirds[:2]) and (share > BACKLOG_SHARE or backlog > _chance(arrival))
    return Stability(
        "unstable" if growing else "stable",
        _reason(thirds, backlog, share),
        (thirds[0], thirds[1], thirds[2]),
        backlog,
        share,
        (last - first) / NS_PER_S,
    )


def _chance(arrival_ns: np.ndarray) -> float:
    """Return the backlog that a queue at full load may end with by chance (see `CHANCE`)."""
    gaps = np.diff(np.sort(arrival_ns))
    variation = max(1.0, float(gaps.std() / gaps.mean()))
    return CHANCE * variation * float(np.sqrt(arrival_ns.size))


def _mean_waiting(arrival: np.ndarray, left: np.ndarray, start: float, end: float) -> float:
    waited = np.minimum(left, end) - np.maximum(arrival, start)
    return float(np.maximum(waited, 0).sum() / (end - start))


def _reason(thirds: tuple[float, ...], backlog: int, share: float) -> str:
    means = ", ".join(f"{waiting:.1f}" for waiting in thirds)
    return (
        f"mean waiting requests in the thirds of the arrival period: {means}; "
        f"{backlog} still waiting at the last arrival ({share * 100:.1f} % of those scheduled by then)"
    )
