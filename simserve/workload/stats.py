"""A trace in figures: lengths, arrivals, prefix reuse.

Arrival figures count what arrives on its own: independent requests and first turns of sessions.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from simserve.core import Trace
from simserve.units import NS_PER_S
from simserve.workload.blocks import Int64
from simserve.workload.cache_curve import PrefixStats, prefix_stats
from simserve.workload.transform import first_turns

WINDOWS_S = (1, 10, 60)


@dataclass(frozen=True)
class LengthStats:
    """Figures of one column of lengths, in tokens; percentiles by linear interpolation."""

    mean: float
    p5: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: int
    sum: int
    zeros: int
    """Rows of length 0."""


@dataclass(frozen=True)
class WindowStats:
    """Arrivals counted in consecutive windows from the first arrival on."""

    window_s: int
    idc: float
    """Index of dispersion: variance over mean of the counts (1 for Poisson)."""
    peak: float
    """Busiest window over the mean."""
    empty_share: float


@dataclass(frozen=True)
class ArrivalStats:
    """When requests arrive."""

    arrivals: int
    duration_s: float
    """From the first to the last arrival."""
    rate_per_s: float | None
    """Gaps over duration; None if all come at once."""
    gap_cv: float | None
    """Coefficient of variation of the gaps; None with fewer than two gaps."""
    longest_gap_s: float
    equal_stamps: int
    """Arrivals with the same stamp as the one before."""
    minute_autocorrelation: float | None
    """Correlation of the counts of successive whole minutes; None where it is not defined."""
    windows: tuple[WindowStats, ...]


@dataclass(frozen=True)
class TraceStats:
    """All figures of a trace."""

    requests: int
    sessions: int | None
    prompt_tokens: LengthStats
    output_tokens: LengthStats
    arrivals: ArrivalStats
    prefix: PrefixStats | None

    def to_dict(self) -> dict[str, Any]:
        """Return nested plain values, ready for JSON."""
        return asdict(self)


def stats(trace: Trace) -> TraceStats:
    """Return the figures of a trace."""
    return TraceStats(
        requests=len(trace),
        sessions=None if trace.session is None else int(trace.session.max()) + 1,
        prompt_tokens=length_stats(trace.prompt_tokens),
        output_tokens=length_stats(trace.output_tokens),
        arrivals=arrival_stats(trace.arrival_ns[first_turns(trace.session, len(trace))]),
        prefix=prefix_stats(trace),
    )


def length_stats(tokens: Int64) -> LengthStats:
    """Return the figures of a column of lengths."""
    p5, p50, p90, p95, p99 = np.percentile(tokens, (5, 50, 90, 95, 99)).tolist()
    return LengthStats(
        mean=float(tokens.mean()),
        p5=p5,
        p50=p50,
        p90=p90,
        p95=p95,
        p99=p99,
        max=int(tokens.max()),
        sum=int(tokens.sum()),
        zeros=int((tokens == 0).sum()),
    )


def arrival_stats(arrival_ns: Int64) -> ArrivalStats:
    """Return the figures of sorted arrivals."""
    gaps_ns = np.diff(arrival_ns)
    duration_ns = int(arrival_ns[-1] - arrival_ns[0])
    windows = [_window_stats(arrival_ns, window_s) for window_s in WINDOWS_S]
    return ArrivalStats(
        arrivals=len(arrival_ns),
        duration_s=duration_ns / NS_PER_S,
        rate_per_s=len(gaps_ns) * NS_PER_S / duration_ns if duration_ns else None,
        gap_cv=float(gaps_ns.std() / gaps_ns.mean()) if len(gaps_ns) > 1 and duration_ns else None,
        longest_gap_s=int(gaps_ns.max(initial=0)) / NS_PER_S,
        equal_stamps=int((gaps_ns == 0).sum()),
        minute_autocorrelation=_lag1(window_counts(arrival_ns, 60)),
        windows=tuple(window for window in windows if window is not None),
    )


def window_counts(arrival_ns: Int64, window_s: int) -> Int64:
    """Return the arrivals in each whole window between the first and the last arrival."""
    place = (arrival_ns - arrival_ns[0]) // (window_s * NS_PER_S)
    return np.bincount(place)[: place[-1]] if place[-1] else place[:0]


def _window_stats(arrival_ns: Int64, window_s: int) -> WindowStats | None:
    counts = window_counts(arrival_ns, window_s)
    if len(counts) < 2:
        return None
    mean = float(counts.mean())
    return WindowStats(
        window_s, float(counts.var() / mean), float(counts.max() / mean), float((counts == 0).mean())
    )


def _lag1(counts: Int64) -> float | None:
    if len(counts) < 3:
        return None
    before, after = counts[:-1], counts[1:]
    if not before.std() or not after.std():
        return None
    return float(np.corrcoef(before, after)[0, 1])
