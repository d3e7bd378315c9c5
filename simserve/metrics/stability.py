"""Is the load carried, or does work pile up somewhere, or was the run too short to tell?

An overloaded open system has no steady latency: every number depends on how long the run was. One judgement
serves single runs and studies. It looks at time stamps alone, so it knows neither engine nor timeline, and it
does not ask where the work piles up: in the queue, on its way to the decode side, before its first decode
step, in a batch that grows, or at clients that give up.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.core import Result, Status
from simserve.units import NS_PER_S

Int64 = NDArray[np.int64]

STABLE, UNSTABLE, TOO_SHORT, NOT_JUDGED = "stable", "unstable", "too short", "not judged"

MIN_REQUESTS = 30
GROWTH = 1.3
BACKLOG_SHARE = 0.05
CHANCE = 2.0
"""Standard deviations: a queue at exactly full load ends a run above CHANCE * sqrt(arrivals) in one of twenty
if arrivals are Poisson (a reflected random walk)."""
FILLED = 0.9
"""Share of the requests by whose time in service the system counts as filled."""
THIRDS = 3
RELAXED = 10
"""Times in service after which a batch that goes on growing does not settle any more [our choice: near full
load steps grow longer with the batch, and the batch with the steps, several times over]."""
SLOWING = 0.8
"""Growth from the middle third to the last, relative to that before, below which a batch may yet settle [our
choice: a straight line has 1 once the system is filled]."""
_NEVER = np.iinfo(np.int64).max

RULE = (
    "Three outcomes. Waiting is the time before the first scheduling and, in a split, from the end of the "
    "prompt to the first decode step; a request whose client gave up waits for ever. The time in service is "
    f"the rest, at the {FILLED:.0%} quantile. Not carried (unstable): the mean number of waiting requests "
    f"over the last third of the arrival period exceeds {GROWTH} times that of each earlier third, and more "
    f"wait at the last arrival than chance explains, {CHANCE:g} * sqrt(arrivals), times the variation of the "
    "gaps between arrivals if above 1; or, from the middle third to the last, completions fall behind "
    f"arrivals by more than {BACKLOG_SHARE:.0%} and more than chance, wherever the requests are, and do not "
    "catch up. Too short to tell: the arrival period is shorter than three times in service (each third must "
    "be long enough to fill the system, or nothing can be said of completions per second; a growing queue "
    f"needs one), or the queue grows by half of that much or more than {BACKLOG_SHARE:.0%} of what arrives "
    f"pile up, but chance or a batch that still settles (for {RELAXED} times in service at most) may explain "
    f"it. Carried (stable): otherwise. "
    f"Not judged for closed loops, for fewer than {MIN_REQUESTS} requests, or if all arrive at one instant."
)


@dataclass(frozen=True)
class Stability:
    """The verdict and the figures that it rests on."""

    verdict: str
    """`stable` (the load is carried), `unstable` (it is not), `too short` to tell, or `not judged`."""
    reason: str
    waiting_by_third: tuple[float, float, float] | None = None
    """Mean waiting requests in each third of the arrival period."""
    backlog_requests: int | None = None
    """Waiting when the last request arrived."""
    backlog_share: float | None = None
    """Backlog / requests not waiting then: the time to drain it, relative to the arrival period."""
    arrival_period_s: float | None = None
    present_by_third: tuple[float, float, float] | None = None
    """Mean requests in the system, waiting or not, in each third."""
    service_s: float | None = None
    """Time without waiting within which nine of ten requests are answered."""
    needed_s: float | None = None
    """Arrival period that may tell, if this one was too short, or had too few requests."""
    needed_requests: int | None = None
    """Requests that arrive in `needed_s` at the same rate."""


def judge(result: Result, closed_loop: bool = False) -> Stability:
    """Return whether the load of `result` was carried, by `RULE`."""
    if closed_loop:
        return Stability(NOT_JUDGED, "a closed loop never offers more than the system takes")
    queued = (result.arrival_ns >= 0) & (result.status != Status.REFUSED)
    arrival = result.arrival_ns[queued]
    if not arrival.size:
        return Stability(NOT_JUDGED, "no request arrived")
    first, last = int(arrival.min()), int(arrival.max())
    if first == last:
        return Stability(NOT_JUDGED, "all requests arrived at one instant")
    if arrival.size < MIN_REQUESTS:
        period_s = (last - first) / NS_PER_S
        needed_s = period_s * MIN_REQUESTS / arrival.size
        few = f"only {arrival.size} requests arrived, {MIN_REQUESTS} are the least"
        return Stability(
            NOT_JUDGED, few, arrival_period_s=period_s, needed_s=needed_s, needed_requests=MIN_REQUESTS
        )
    return _judge(_Stays(result, queued), first, last)


class _Stays:
    """When the requests of a result came, waited, and left."""

    def __init__(self, result: Result, queued: NDArray[np.bool_]) -> None:
        done = result.status[queued] == Status.COMPLETED
        gave_up = result.status[queued] == Status.ABANDONED
        scheduled = result.first_scheduled_ns[queued]
        self.arrival = result.arrival_ns[queued]
        self.left = np.where(done, result.last_token_ns[queued], _NEVER)
        """When each was answered."""
        begun = np.where((scheduled >= 0) & ~gave_up, scheduled, _NEVER)
        self.waits: list[tuple[Int64, Int64]] = [(self.arrival, begun)]
        """From when to when they waited; several times for some."""
        waited = scheduled - self.arrival + result.requeued_ns[queued]
        if result.split is not None:
            computed = result.split.columns.prefill_end_ns[queued]
            decoding = result.split.columns.decode_scheduled_ns[queued]
            between = (computed >= 0) & ~gave_up & ((decoding >= 0) | ~done)
            resumed = np.where(decoding >= 0, decoding, _NEVER)
            self.waits.append((computed[between], resumed[between]))
            waited = waited + np.where(between & (decoding >= 0), decoding - computed, 0)
        service = (self.left - self.arrival - waited)[done & (scheduled >= 0)]
        self.service_ns = float(np.quantile(service, FILLED)) if service.size else 0.0

    def waiting(self, start: float, end: float) -> float:
        """Return the mean number of waiting requests between two instants."""
        return sum(_mean_between(came, went, start, end) for came, went in self.waits)

    def waiting_at(self, when: int) -> int:
        """Return how many wait just after an instant."""
        return sum(int(np.count_nonzero((came <= when) & (went > when))) for came, went in self.waits)


def _judge(stays: _Stays, first: int, last: int) -> Stability:
    arrivals, period = stays.arrival.size, last - first
    thirds = list(pairwise(np.linspace(first, last, THIRDS + 1).tolist()))
    waiting = tuple(stays.waiting(a, b) for a, b in thirds)
    present = tuple(_mean_between(stays.arrival, stays.left, a, b) for a, b in thirds)
    backlog = stays.waiting_at(last)
    share = backlog / max(arrivals - backlog, 1)

    queue_grows = waiting[2] > GROWTH * max(waiting[:2])
    middle, late = (sum(third) / 2 for third in thirds[1:])
    came = max(int(np.count_nonzero((stays.arrival > middle) & (stays.arrival <= late))), 1)
    behind = present[2] - present[1]
    """Requests by which completions fell behind arrivals between the middles of the last two thirds."""

    slowing = behind < SLOWING * (present[1] - present[0]) and period < RELAXED * stays.service_ns
    """The batch still settles: it grows, but ever more slowly."""
    chance = CHANCE * _variation(stays.arrival)
    falls_behind = behind > max(BACKLOG_SHARE * came, chance * math.sqrt(came))
    likely = backlog > chance * math.sqrt(arrivals) / 2 or waiting[2] - waiting[1] > BACKLOG_SHARE * came
    piles_up = (queue_grows and likely) or behind > max(BACKLOG_SHARE * came, CHANCE * math.sqrt(present[1]))

    needed, why = 0.0, _queue_words(waiting, backlog, share)
    if queue_grows and backlog > chance * math.sqrt(arrivals) and period >= stays.service_ns:
        verdict = UNSTABLE
    elif period < THIRDS * stays.service_ns:
        verdict, needed = TOO_SHORT, THIRDS * stays.service_ns
        why = (
            f"requests arrive over {period / NS_PER_S:,.4g} s, and nine of ten are answered within "
            f"{stays.service_ns / NS_PER_S:,.4g} s, waiting apart"
        )
    elif falls_behind and not slowing:
        verdict = UNSTABLE
        why = f"of {came:,} requests that arrive, {came - behind:,.0f} complete meanwhile; {why}"
    elif piles_up:
        verdict, needed = TOO_SHORT, 2.0 * period
        why = f"requests pile up, and may stop doing so or not; {why}"
    else:
        verdict = STABLE
    return Stability(
        verdict,
        why,
        (waiting[0], waiting[1], waiting[2]),
        backlog,
        share,
        period / NS_PER_S,
        (present[0], present[1], present[2]),
        stays.service_ns / NS_PER_S,
        needed / NS_PER_S if needed else None,
        math.ceil(arrivals * needed / period) if needed else None,
    )


def _variation(arrival_ns: Int64) -> float:
    """Return the coefficient of variation of the gaps between arrivals, at least 1."""
    gaps = np.diff(np.sort(arrival_ns))
    return max(1.0, float(gaps.std() / gaps.mean()))


def _mean_between(came: Int64, went: Int64, start: float, end: float) -> float:
    stayed = np.minimum(went, end) - np.maximum(came, start)
    return float(np.maximum(stayed, 0).sum() / (end - start))


def _queue_words(thirds: tuple[float, ...], backlog: int, share: float) -> str:
    means = ", ".join(f"{waiting:.1f}" for waiting in thirds)
    return (
        f"mean waiting requests in the thirds of the arrival period: {means}; "
        f"{backlog} still waiting at the last arrival ({share * 100:.1f} % of the others)"
    )


def too_short_words(verdict: Any) -> str:
    """Return what is missing to tell whether the load is carried (`verdict`: a `Stability`, or its dict)."""
    found = verdict if isinstance(verdict, dict) else asdict(verdict)
    return (
        f"too short to tell whether this load is carried: {found['reason']}. About "
        f"{found['needed_requests']:,} requests, {found['needed_s']:,.4g} s of arrivals, would tell"
    )
