"""What an SLO asks, as shares of requests that must be within limits, and how one run did.

Every target becomes a share: "p99 of TTFT at most 1 s" is "at least 99 % of the requests have a TTFT of at
most 1 s". Requests are those of the steady window, in the order of arrival, in batches; refused and
unfinished ones are within no limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from simserve.core import Result
from simserve.metrics.columns import Columns, Slo, derive
from simserve.metrics.distribution import Batch, Interval, share_interval, share_within
from simserve.metrics.window import Span, steady_span, whole_span

MARGIN = 0.1
"""Share of the arrivals at either end that do not count as steady, as in the engine."""
BATCHES = 20
"""Batches per run for the variance of dependent requests (Law recommends 10 to 30)."""
Batches = Mapping[str, Sequence[Sequence[int]]]
"""Batches of one run by the name of the target: requests and good ones."""
LATENCY_WORDS = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "itl_ms": "ITL", "e2e_ms": "E2E"}


class Target(NamedTuple):
    """A share of the requests (of the gaps, for ITL) that must be within the limits."""

    name: str
    limits: tuple[tuple[str, float], ...]
    """Quantity and limit in ms; a request must be within all of them."""
    share: float

    @property
    def words(self) -> str:
        """The target as people write it."""
        return f"{self.share * 100:g} % with {self.limit_words}"

    @property
    def limit_words(self) -> str:
        """The limits as people write them."""
        return " and ".join(f"{LATENCY_WORDS[key]} ≤ {_time_words(limit)}" for key, limit in self.limits)


def _time_words(limit_ms: float) -> str:
    """Return a limit as people say it: `500 ms`, `1.5 s`."""
    return f"{limit_ms:g} ms" if limit_ms < 1000 else f"{limit_ms / 1000:g} s"


def targets_of(slo: Slo | None) -> list[Target]:
    """Return the targets of an SLO: its joint attainment, the gaps', and each percentile."""
    if slo is None:
        return []
    joint = {key: limit for key, limit in slo.limits().items() if key != "itl_ms"}
    found = [Target("attainment", tuple(joint.items()), slo.attainment)] if joint else []
    if slo.itl_ms is not None:
        found.append(Target("itl_ms", (("itl_ms", slo.itl_ms),), slo.attainment))
    for key, limits in slo.percentiles.items():
        found += [
            Target(f"{key}.{percentile}", ((key, limit),), float(percentile[1:]) / 100)
            for percentile, limit in limits.items()
        ]
    return found


def batches_of(result: Result, targets: Sequence[Target], whole: bool = False) -> dict[str, list[Batch]]:
    """Return the batches of one run for each target: of the steady window, or of the whole run.

    Gaps have no order, so the whole run leaves their targets out.
    """
    columns = derive(result)
    span = whole_span(result, columns) if whole else steady_span(result, columns)
    if whole:
        targets = [target for target in targets if all(key != "itl_ms" for key, _ in target.limits)]
    rows = np.flatnonzero(span.requests)
    rows = rows[np.argsort(result.arrival_order[rows], kind="stable")]
    return {target.name: _batches(result, columns, span, rows, target) for target in targets}


def _batches(result: Result, columns: Columns, span: Span, rows: np.ndarray, target: Target) -> list[Batch]:
    if any(key == "itl_ms" for key, _ in target.limits):
        # Gaps of one request depend on each other, and are not kept by request: a run is one batch, worth
        # no more than its requests.
        share = share_within(span.gaps, target.limits[0][1])
        return [] if share is None else [Batch(len(rows), int(share * len(rows)))]
    within = columns.completed[rows].copy()
    for key, limit in target.limits:
        within &= ~(getattr(columns, key)[rows] > limit)  # what a request does not have breaks no limit
    parts = np.array_split(within, min(BATCHES, max(len(within), 1)))
    return [Batch(len(part), int(part.sum())) for part in parts]


class Judged(NamedTuple):
    """A target against its runs."""

    target: Target
    interval: Interval | None

    @property
    def met(self) -> bool:
        """True only if the lower bound meets the target."""
        return self.interval is not None and (self.interval.low or 0.0) >= self.target.share

    @property
    def missed(self) -> bool:
        """True if even the upper bound misses the target."""
        return self.interval is not None and (self.interval.high or 0.0) < self.target.share

    @property
    def shortfall(self) -> float:
        """How far the estimate is below the target, in shares; negative if above."""
        return self.target.share - (self.interval.estimate if self.interval else 0.0)


def judge(targets: Sequence[Target], runs: Sequence[Batches], confidence: float) -> list[Judged]:
    """Judge independent runs; `confidence` is that of a two-sided interval."""
    found = []
    for target in targets:
        batches = [[Batch(*pair) for pair in run.get(target.name, [])] for run in runs]
        found.append(Judged(target, share_interval(batches, confidence)))
    return found


def requests_needed(share: float, confidence: float) -> int:
    """Return how many requests, all of them good, show a share with a two-sided interval's confidence."""
    tail = (1 - confidence) / 2
    return int(np.ceil(np.log(tail) / np.log(share))) if share < 1 else 0
