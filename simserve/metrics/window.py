"""Statistics of one window of a run: the whole of it, or the steady part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simserve.core import ReplicaResult, Result, TokenGaps
from simserve.metrics.columns import Columns, Slo, good, held, missed
from simserve.metrics.distribution import Distribution, of_gaps_ms, of_values, share_within
from simserve.units import NS_PER_S

Bool = NDArray[np.bool_]


@dataclass(frozen=True)
class Span:
    """Which requests a window's latencies are over, and the time that its rates are over."""

    requests: Bool
    start_ns: int
    end_ns: int
    gaps: TokenGaps

    @property
    def duration_s(self) -> float:
        """Length in seconds."""
        return (self.end_ns - self.start_ns) / NS_PER_S


@dataclass(frozen=True)
class SloResult:
    """How the window's requests did against the SLO."""

    limits: dict[str, float]
    good_requests: int
    attainment: float | None
    """Good / arrived requests of the window."""
    goodput_requests_per_s: float | None
    missed: dict[str, int]
    """Completed requests that broke each limit (a request may break several)."""
    itl_within_share: float | None
    """Share of gaps within the ITL limit, if there is one."""


@dataclass(frozen=True)
class WindowSummary:
    """Latencies, rates and SLO of one window. Latencies in ms."""

    requests: int
    completed: int
    start_s: float | None
    end_s: float | None
    duration_s: float | None
    ttft_ms: Distribution
    tpot_ms: Distribution
    itl_ms: Distribution
    e2e_ms: Distribution
    queueing_ms: Distribution
    requeued_ms: Distribution
    normalised_ms: Distribution
    requests_per_s: float | None
    output_tokens_per_s: float | None
    total_tokens_per_s: float | None
    kv_use_mean: float | None
    hit_rate: float | None
    preemptions: int
    slo: SloResult | None


def whole_span(result: Result, columns: Columns) -> Span:
    """Return the window that holds everything."""
    if not columns.arrived.any():
        return Span(columns.arrived, 0, 0, result.gaps)
    start_ns = int(result.arrival_ns[columns.arrived].min())
    return Span(columns.arrived, start_ns, max(result.end_ns, start_ns), result.gaps)


def steady_span(result: Result, columns: Columns) -> Span:
    """Return the steady window: requests by arrival rank, time from the first of them to the first after."""
    low, high = result.steady_window
    inside = columns.arrived & (result.arrival_order >= low) & (result.arrival_order < high)
    if not inside.any():
        return Span(inside, 0, 0, result.steady_gaps)
    after = columns.arrived & (result.arrival_order >= high)
    end_ns = result.arrival_ns[after].min() if after.any() else result.arrival_ns[inside].max()
    return Span(inside, int(result.arrival_ns[inside].min()), int(end_ns), result.steady_gaps)


def summarize_window(
    result: Result, columns: Columns, span: Span, slo: Slo | None, carried: bool = False
) -> WindowSummary:
    """Return the statistics of `span`.

    Rates count what completes in the span; if its load is `carried`, what its own requests complete, whenever
    they do.
    """
    members = span.requests
    done = members & columns.completed
    ended = done if carried else _ended_inside(result, columns, span)
    outputs = int(result.output_tokens[ended].sum())
    scheduled = members & columns.scheduled
    some = bool(members.any())
    return WindowSummary(
        requests=int(members.sum()),
        completed=int(done.sum()),
        start_s=span.start_ns / NS_PER_S if some else None,
        end_s=span.end_ns / NS_PER_S if some else None,
        duration_s=span.duration_s if some else None,
        ttft_ms=of_values(columns.ttft_ms[done]),
        tpot_ms=of_values(columns.tpot_ms[done]),
        itl_ms=of_gaps_ms(span.gaps),
        e2e_ms=of_values(columns.e2e_ms[done]),
        queueing_ms=of_values(columns.queueing_ms[done]),
        requeued_ms=of_values(columns.requeued_ms[done]),
        normalised_ms=of_values(columns.normalised_ms[done]),
        requests_per_s=_rate(int(ended.sum()), span),
        output_tokens_per_s=_rate(outputs, span),
        total_tokens_per_s=_rate(outputs + int(result.prompt_tokens[ended].sum()), span),
        kv_use_mean=kv_use(result.replicas, span),
        hit_rate=ratio(
            int(result.cached_tokens[scheduled].sum()), int(result.prompt_tokens[scheduled].sum())
        ),
        preemptions=int(result.preemptions[members].sum()),
        slo=None if slo is None else _slo(columns, span, ended, slo),
    )


def _slo(columns: Columns, span: Span, ended: Bool, slo: Slo) -> SloResult:
    meets = good(slo, columns)
    n_good = int((meets & span.requests).sum())
    return SloResult(
        limits=slo.limits(),
        good_requests=n_good,
        attainment=ratio(n_good, int(span.requests.sum())),
        goodput_requests_per_s=_rate(int((meets & ended).sum()), span),
        missed={name: int((broken & span.requests).sum()) for name, broken in missed(slo, columns).items()},
        itl_within_share=None if slo.itl_ms is None else share_within(span.gaps, slo.itl_ms),
    )


def _ended_inside(result: Result, columns: Columns, span: Span) -> Bool:
    inside = (result.last_token_ns >= span.start_ns) & (result.last_token_ns <= span.end_ns)
    return columns.completed & inside


def kv_use(replicas: Sequence[ReplicaResult], span: Span) -> float | None:
    """Return held / usable KV blocks of `replicas`, time-weighted over the span; None if it has no length."""
    edges = np.array([span.start_ns, span.end_ns], dtype=np.float64)
    used = sum(
        float(held(r.timeline.start_ns, r.timeline.end_ns, r.timeline.kv_used_blocks, edges)[0])
        for r in replicas
    )
    return ratio(used, sum(r.kv_blocks for r in replicas) * (span.end_ns - span.start_ns))


def _rate(amount: float, span: Span) -> float | None:
    return amount / span.duration_s if span.duration_s > 0 else None


def ratio(part: float, whole: float) -> float | None:
    """Return part / whole; None where there is nothing to divide by."""
    return part / whole if whole > 0 else None
