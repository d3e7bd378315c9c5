"""Is the SLO met? One verdict from limits, attainment and percentiles together, for runs and studies alike.

Every target is a share of requests that must be within limits (see `targets.py`), so one rule serves them
all, and a percentile beside its share cannot contradict it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simserve.core import Result, TokenGaps
from simserve.metrics.columns import derive
from simserve.metrics.measures import percent
from simserve.metrics.stability import UNSTABLE, Stability
from simserve.metrics.targets import (
    LATENCY_WORDS,
    Batches,
    Judged,
    Target,
    batches_of,
    judge,
    requests_needed,
)
from simserve.metrics.window import steady_span
from simserve.units import NS_PER_MS

MET, MISSED, INCONCLUSIVE = "met", "missed", "inconclusive"
_ORDER = (MISSED, INCONCLUSIVE, MET)
CONFIDENCE = 0.95
"""Of the two-sided interval of each share."""

SLO_RULE = (
    "Over the requests of the steady window; refused, abandoned and unfinished ones are within no limit. "
    f"Met: the {CONFIDENCE:.0%} interval of every share (batch means) lies at or above its target. Missed: "
    "the interval of one lies below it, or the load is not carried (unstable). Inconclusive: an interval "
    "holds the target, or the run is too short to tell whether the load is carried; more requests would "
    "tell. The share and the target that stand for the SLO are those of the target with the least to spare."
)


@dataclass(frozen=True)
class Evidence:
    """What one run says about the targets."""

    batches: Batches
    stability: str
    needed_requests: int | None = None
    """Requests that may tell whether the load is carried, if this run was too short."""
    percentiles: Mapping[str, float | None] = field(default_factory=dict)
    """In ms by the name of the target; None where that many requests never got there."""
    window: tuple[int, int] | None = None
    """Ranks of arrival between which the requests lie."""


@dataclass(frozen=True)
class SloCheck:
    """One target."""

    name: str
    """attainment, itl_ms, or a percentile such as ttft_ms.p99."""
    asked: str
    """`99 % with TTFT ≤ 500 ms`."""
    outcome: str
    text: str
    """The figure with its target."""
    target: float
    """Share of the requests (of the gaps, for ITL) that must be within the limits."""
    kept: float | None
    """Share that is."""
    low: float | None
    high: float | None
    value_ms: float | None = None
    """The percentile, for a percentile target; over several runs their mean."""


@dataclass(frozen=True)
class SloVerdict:
    """The verdict on all targets together."""

    outcome: str
    """met, missed or inconclusive."""
    text: str
    """Every figure with its target, what decides first."""
    kept: float | None
    """Share within the limits, of the target with the least to spare."""
    target: float
    basis: str
    """Which requests are judged."""
    checks: tuple[SloCheck, ...]

    @property
    def asked(self) -> str:
        """All targets, as people write them."""
        return "; ".join(check.asked for check in self.checks)


def evidence(result: Result, targets: Sequence[Target], stability: Stability) -> Evidence:
    """Return what a run says about the targets."""
    columns, span = derive(result), steady_span(result, derive(result))
    percentiles: dict[str, float | None] = {}
    for target in targets:
        key, dot, _ = target.name.partition(".")
        if not dot:
            continue
        if key == "itl_ms":
            percentiles[target.name] = _gap_quantile_ms(span.gaps, target.share)
        else:
            values = np.where(columns.completed, getattr(columns, key), np.inf)[span.requests]
            percentiles[target.name] = _quantile(values, target.share)
    return Evidence(
        batches_of(result, targets),
        stability.verdict,
        stability.needed_requests,
        percentiles,
        result.steady_window,
    )


def judge_slo(
    targets: Sequence[Target], runs: Sequence[Evidence], confidence: float = CONFIDENCE
) -> SloVerdict | None:
    """Return the verdict on independent runs of one deployment; None without targets."""
    if not targets:
        return None
    judged = judge(targets, [run.batches for run in runs], confidence)
    checks = [_check(one, [run.percentiles.get(one.target.name) for run in runs]) for one in judged]
    unstable = any(run.stability == UNSTABLE for run in runs)
    needed = max((run.needed_requests or 0 for run in runs), default=0)
    outcomes = {check.outcome for check in checks}
    if unstable or MISSED in outcomes:
        outcome = MISSED
    else:
        outcome = INCONCLUSIVE if needed or INCONCLUSIVE in outcomes else MET
    parts = [check.text for check in sorted(checks, key=lambda check: _ORDER.index(check.outcome))]
    if unstable:
        parts.insert(0, "the load is not carried")
    elif outcome == INCONCLUSIVE:
        parts.append(_more(judged, runs, needed, confidence))
    worst = max(judged, key=lambda one: one.shortfall)
    return SloVerdict(
        outcome,
        "; ".join(parts),
        worst.interval.estimate if worst.interval else None,
        worst.target.share,
        _basis(runs),
        tuple(checks),
    )


def _check(one: Judged, values: Sequence[float | None]) -> SloCheck:
    interval, target = one.interval, one.target
    known = [value for value in values if value is not None]
    value = math.fsum(known) / len(known) if known and len(known) == len(values) else None
    outcome = MISSED if one.missed else MET if one.met else INCONCLUSIVE
    return SloCheck(
        target.name,
        target.words,
        outcome,
        _text(one, value, outcome),
        target.share,
        interval.estimate if interval else None,
        interval.low if interval else None,
        interval.high if interval else None,
        value,
    )


def _text(one: Judged, value_ms: float | None, outcome: str) -> str:
    """Return the figure with its target: `99.8 % of requests within TTFT ≤ 500 ms (target: 99 %)`."""
    target, interval = one.target, one.interval
    what = "gaps" if target.limits[0][0] == "itl_ms" else "requests"
    if interval is None:
        return f"no {what} to judge {target.limit_words} by"
    ends = ""
    if outcome == INCONCLUSIVE:
        ends = f", {percent(interval.low or 0.0)} to {percent(interval.high or 0.0)} are possible"
    key, dot, name = target.name.partition(".")
    if dot and value_ms is not None:
        limit = f"{target.limits[0][1]:g} ms"
        ends = f", {percent(interval.estimate)} of {what} within it{ends}" if ends else ""
        return f"{name} of {LATENCY_WORDS[key]} is {value_ms:,.4g} ms (target: {limit}{ends})"
    share = f"{percent(interval.estimate)} of {what} within {target.limit_words}"
    return f"{share} (target: {target.share * 100:g} %{ends})"


def _more(judged: Sequence[Judged], runs: Sequence[Evidence], needed: int, confidence: float) -> str:
    """Return what would tell."""
    if needed:
        return f"too short to tell whether the load is carried, about {needed:,} requests would"
    spare = [one for one in judged if not one.met]
    if all(one.interval is not None and one.interval.estimate == 1 for one in spare):
        wanted = max(requests_needed(one.target.share, confidence) for one in spare)
        return f"more requests would tell (at least {wanted:,} in the steady window)"
    return "more requests would tell"


def _basis(runs: Sequence[Evidence]) -> str:
    windows = {run.window for run in runs if run.window is not None}
    ranks = ""
    if len(windows) == 1:
        low, high = windows.pop()
        ranks = f", requests {low + 1:,} to {high:,} by arrival"
    return (f"the steady windows of {len(runs)} runs" if len(runs) > 1 else "the steady window") + ranks


def _quantile(values: NDArray[np.float64], share: float) -> float | None:
    """Return the least value that a share of the values does not exceed; what is absent exceeds nothing."""
    if not values.size:
        return None
    ordered = np.where(np.isnan(values), -np.inf, values)
    found = float(np.quantile(ordered, share, method="inverted_cdf"))
    return found if math.isfinite(found) else None


def _gap_quantile_ms(gaps: TokenGaps, share: float) -> float | None:
    ends = np.cumsum(gaps.count)
    if not ends.size or not ends[-1]:
        return None
    place = int(np.searchsorted(ends, math.ceil(share * int(ends[-1]) - 1e-9)))
    return float(gaps.gap_ns[place]) / NS_PER_MS
