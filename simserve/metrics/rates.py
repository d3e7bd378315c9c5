"""What a deployment serves per second, and what that costs: the rates by which deployments are ranked.

A whole run ends with a drain in which nothing arrives any more, and begins with a system that fills. Both
belong to the length of the run, not to the deployment, so rates are those of the arrival period.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from simserve.core import Result
from simserve.metrics.columns import Columns
from simserve.metrics.stability import STABLE, THIRDS, UNSTABLE, Stability
from simserve.metrics.window import WindowSummary
from simserve.units import NS_PER_S

CARRIED = "arrivals of the steady window"
INSIDE = "completions in the steady window"
WHOLE = "completions of the whole run"

RATES_RULE = (
    "Of a load that is carried: what the requests that arrive in the steady window complete / duration of "
    "the window, so that deployments with the same traffic that all carry it serve the same. Of a load that "
    "is not carried, and of closed loops: what completes in the steady window / its duration. Of the whole "
    f"run, drain included, where the arrivals do not last {THIRDS} times in service, or stability is not "
    "judged. Drain: time from the last arrival to the end of the run."
)


@dataclass(frozen=True)
class Rates:
    """Rates per second; None where there is no time to divide by."""

    basis: str
    """What is counted: arrivals of the steady window, completions in it, or completions of the whole run."""
    duration_s: float | None
    offered_requests_per_s: float | None
    """Arrivals of the steady window / its duration."""
    requests_per_s: float | None
    output_tokens_per_s: float | None
    total_tokens_per_s: float | None
    """Prompt and output tokens."""
    goodput_requests_per_s: float | None
    """Requests within the SLO's limits; None without limits."""
    drain_s: float | None
    """From the last arrival to the end of the run."""


def rates_of(
    result: Result,
    columns: Columns,
    whole: WindowSummary,
    steady: WindowSummary,
    stability: Stability,
    closed_loop: bool,
) -> Rates:
    """Return the rates of a run by `RATES_RULE`."""
    basis = _basis(steady, stability, closed_loop)
    window = whole if basis == WHOLE else steady
    arrived = result.arrival_ns[columns.arrived]
    drain_ns = max(result.end_ns - int(arrived.max()), 0) if arrived.size else None
    offered = steady.requests / steady.duration_s if steady.duration_s else None
    return Rates(
        basis,
        window.duration_s,
        None if closed_loop else offered,
        window.requests_per_s,
        window.output_tokens_per_s,
        window.total_tokens_per_s,
        None if window.slo is None else window.slo.goodput_requests_per_s,
        None if drain_ns is None else drain_ns / NS_PER_S,
    )


def cost_per_million(price_per_hour: float | None, per_s: float | None) -> float | None:
    """Return the price of a million tokens that are made at a rate; None without a price or a rate."""
    return price_per_hour / 3600 / per_s * 1e6 if price_per_hour is not None and per_s else None


def _basis(steady: WindowSummary, stability: Stability, closed_loop: bool) -> str:
    if not steady.duration_s:
        return WHOLE
    if stability.verdict == STABLE:
        return CARRIED
    lasts = (stability.arrival_period_s or 0.0) >= THIRDS * (stability.service_s or np.inf)
    return INSIDE if closed_loop or (stability.verdict == UNSTABLE and lasts) else WHOLE


# A change to a deployment that was simulated and found to help, as summary.json holds it and as words.

GOODPUT, THROUGHPUT = "goodput", "throughput"


@dataclass(frozen=True)
class Advice:
    """One change and its effect over the first requests of the workload, the rest being equal."""

    change: str
    """In words: `fp8 KV`."""
    set: list[str]
    """What `simserve run --set` takes to make it: `pools.0.kv_dtype=fp8`."""
    measure: str
    """goodput or throughput, in requests/s."""
    before: float
    """Of the deployment as it is, over the same requests."""
    after: float
    effect: float
    """after / before - 1."""
    gpus: int
    """GPUs of the changed deployment."""
    requests: int
    """Requests that were simulated for each of the two."""
    carries: bool = False
    """The changed deployment carries a load that the deployment as it is does not."""


def advice_words(advice: Mapping[str, Any]) -> str:
    """Return `fp8 KV: +8.6 % goodput (checked with 800 requests)`."""
    carries = ", carries the load" if advice["carries"] else ""
    return (
        f"{advice['change']}: {advice['effect'] * 100:+.3g} % {advice['measure']}{carries} "
        f"(checked with {advice['requests']:,} requests)"
    )
