"""Mean, percentiles and maximum of a set of values, or of a weighted histogram.

Percentiles interpolate linearly between order statistics (numpy's default), as vLLM's bench and AIPerf do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simserve.core import TokenGaps
from simserve.units import NS_PER_MS

PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True)
class Distribution:
    """Statistics of one quantity; all None (and count 0) where there is no data."""

    count: int = 0
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None


def of_values(values: NDArray[np.float64]) -> Distribution:
    """Return the statistics of the values that are present (not NaN)."""
    present = values[~np.isnan(values)]
    if present.size == 0:
        return Distribution()
    p50, p90, p95, p99 = np.percentile(present, PERCENTILES)
    mean, largest = float(present.mean()), float(present.max())
    return Distribution(present.size, mean, float(p50), float(p90), float(p95), float(p99), largest)


def of_gaps_ms(gaps: TokenGaps) -> Distribution:
    """Return the statistics, in ms, of pooled inter-token gaps.

    The mean is exact. Every gap counts as the middle of its bin, so percentiles and the maximum are within
    half a bin's width (0.25 %) of the true ones.
    """
    count = int(gaps.count.sum())
    if count == 0:
        return Distribution()
    p50, p90, p95, p99 = (_percentile(gaps, count, p) / NS_PER_MS for p in PERCENTILES)
    largest = float(gaps.gap_ns[np.flatnonzero(gaps.count)[-1]]) / NS_PER_MS
    return Distribution(count, gaps.sum_ns / count / NS_PER_MS, p50, p90, p95, p99, largest)


def share_within(gaps: TokenGaps, limit_ms: float) -> float | None:
    """Return the share of gaps not longer than `limit_ms`; None if there are none."""
    count = int(gaps.count.sum())
    if count == 0:
        return None
    return float(gaps.count[gaps.gap_ns <= limit_ms * NS_PER_MS].sum()) / count


def _percentile(gaps: TokenGaps, count: int, percent: float) -> float:
    """Return what `np.percentile(np.repeat(gap_ns, count), percent)` would, without repeating."""
    position = (count - 1) * percent / 100
    below = int(position)
    ends = np.cumsum(gaps.count)
    low, high = np.searchsorted(ends, [below, min(below + 1, count - 1)], side="right")
    low_ns, high_ns = float(gaps.gap_ns[low]), float(gaps.gap_ns[high])
    return low_ns + (high_ns - low_ns) * (position - below)


# Confidence intervals for means over replications and for shares of dependent requests.
#
# Quantiles come from the regularised incomplete beta function (continued fraction, Abramowitz and Stegun
# 26.5.8), so that nothing but the standard library is needed.

_TINY = 1e-300
_STEPS = 400


class Interval(NamedTuple):
    """An estimate and the ends of its confidence interval; None where one run cannot give them."""

    estimate: float
    low: float | None
    high: float | None


def beta_cdf(x: float, a: float, b: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b)."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(x, a, b) / a
    return 1 - front * _fraction(1 - x, b, a) / b


def _fraction(x: float, a: float, b: float) -> float:
    """Evaluate the continued fraction by the method of Lentz."""
    c, d = 1.0, _nonzero(1 - (a + b) * x / (a + 1))
    d = 1 / d
    value = d
    for m in range(1, _STEPS):
        for step in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _nonzero(1 + step * d)
            c = _nonzero(1 + step / c)
            value *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return value


def _nonzero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def beta_quantile(p: float, a: float, b: float) -> float:
    """Return x with I_x(a, b) = p."""
    return _bisected(lambda x: beta_cdf(x, a, b), p, 0.0, 1.0)


def t_quantile(p: float, freedom: float) -> float:
    """Return the p-quantile of Student's t, p > 0.5."""
    tail = beta_quantile(2 * (1 - p), freedom / 2, 0.5)
    return math.sqrt(freedom * (1 - tail) / tail)


def _bisected(rising: Callable[[float], float], wanted: float, low: float, high: float) -> float:
    for _ in range(200):
        middle = (low + high) / 2
        if high - low <= 1e-12 * min(middle, 1 - middle):
            break
        if rising(middle) < wanted:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def mean_interval(values: Sequence[float], confidence: float) -> Interval:
    """Return the mean of independent values with Student's interval; without ends for a single value."""
    n = len(values)
    mean = math.fsum(values) / n
    if n < 2:
        return Interval(mean, None, None)
    deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1))
    half = t_quantile((1 + confidence) / 2, n - 1) * deviation / math.sqrt(n)
    return Interval(mean, mean - half, mean + half)


class Batch(NamedTuple):
    """Consecutive requests of one run, and how many of them are good."""

    requests: int
    good: int


def share_interval(runs: Sequence[Sequence[Batch]], confidence: float) -> Interval | None:
    """Return the share of good requests with a two-sided interval; None without requests.

    `runs` are independent replications, each in consecutive batches. Clopper and Pearson's interval for as
    many independent requests as the dependent ones are worth: n divided by how much more the batches of a
    run, pairs of them, or the runs scatter than independent requests would (batch means; Law, Simulation
    Modeling and Analysis, 9.5). Requests that depend on each other for longer than a batch are overrated.
    One-sided bounds of confidence c are the ends of the two-sided interval of 2c - 1.
    """
    batches = [batch for run in runs for batch in run if batch.requests]
    n, good = sum(b.requests for b in batches), sum(b.good for b in batches)
    if not n:
        return None
    share = good / n
    totals = [Batch(sum(b.requests for b in run), sum(b.good for b in run)) for run in runs]
    spread = [_inflation(groups, share) for groups in (batches, _merged(runs), totals)]
    worth = n / max(1.0, *spread)
    tail, hits = (1 - confidence) / 2, share * worth
    low = beta_quantile(tail, hits, worth - hits + 1) if good else 0.0
    high = beta_quantile(1 - tail, hits + 1, worth - hits) if good < n else 1.0
    return Interval(share, low, high)


def _merged(runs: Sequence[Sequence[Batch]]) -> list[Batch]:
    """Return batches of twice the length: they scatter more if requests depend on each other for long."""
    pairs = [(run[i : i + 2]) for run in runs for i in range(0, len(run) - 1, 2)]
    return [Batch(sum(b.requests for b in pair), sum(b.good for b in pair)) for pair in pairs]


def _inflation(groups: Sequence[Batch], share: float) -> float:
    """Return the variance of the groups' shares over that of independent requests."""
    expected = share * (1 - share)
    if len(groups) < 2 or not expected:
        return 1.0
    groups = [group for group in groups if group.requests]
    mean_square = sum(g.requests * (g.good / g.requests - share) ** 2 for g in groups) / (len(groups) - 1)
    return mean_square / expected
