"""Per-request latencies derived from a result's time stamps, by the definitions of `definitions.py`.

All start at the arrival, so queueing, preemption and recompute are inside them. Columns are float64[n] in
milliseconds; NaN marks a quantity that the request does not have (it never leaves this package).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simserve.core import Result, Status
from simserve.errors import ScenarioError
from simserve.metrics.stages import split_rows, stage_columns
from simserve.units import NS_PER_MS

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]
Bool = NDArray[np.bool_]


@dataclass(frozen=True)
class Columns:
    """Derived columns of one result."""

    arrived: Bool
    completed: Bool
    scheduled: Bool
    ttft_ms: Float64
    """Needs one output token."""
    tpot_ms: Float64
    """Needs two output tokens and a completed request."""
    e2e_ms: Float64
    """Completed requests only; with 0 output tokens, until the end of the prompt."""
    queueing_ms: Float64
    """Before the first scheduling and, in a split, for the decode side: for room and the first step."""
    requeued_ms: Float64
    """Time waiting again after preemptions; 0 for most."""
    normalised_ms: Float64
    """E2E per output token; needs one."""


def derive(result: Result) -> Columns:
    """Return the derived columns of `result`."""
    arrived = result.arrival_ns >= 0
    completed = result.status == Status.COMPLETED
    scheduled = result.first_scheduled_ns >= 0
    shown = (result.first_token_ns >= 0) & (result.output_tokens >= 1)
    e2e_ns = result.last_token_ns - result.arrival_ns
    decode_ns = result.last_token_ns - result.first_token_ns
    outputs = np.maximum(result.output_tokens, 1)
    return Columns(
        arrived=arrived,
        completed=completed,
        scheduled=scheduled,
        ttft_ms=_ms(result.first_token_ns - result.arrival_ns, shown),
        tpot_ms=_ms(decode_ns / np.maximum(outputs - 1, 1), completed & (result.output_tokens >= 2)),
        e2e_ms=_ms(e2e_ns, completed),
        queueing_ms=_ms(_queueing_ns(result), scheduled),
        requeued_ms=_ms(result.requeued_ns, scheduled),
        normalised_ms=_ms(e2e_ns / outputs, completed & (result.output_tokens >= 1)),
    )


def _queueing_ns(result: Result) -> Int64:
    """Return the time before the first scheduling; of a split on the decode side too."""
    waited = result.first_scheduled_ns - result.arrival_ns
    if result.split is None:
        return waited
    stages = stage_columns(result)
    both = stages["prefill_queue"] + stages["decode_queue"]
    return np.where(split_rows(result), both, waited)


def _ms(values_ns: NDArray[np.generic], present: Bool) -> Float64:
    return np.where(present, values_ns.astype(np.float64) / NS_PER_MS, np.nan)


# Sums over intervals of time: how much fell into each bin, and which level was held.
#
# Intervals of one replica may have gaps (it was idle) and may overlap (microbatches of a pipeline).


def totals(start: Int64, end: Int64, amount: Float64, edges: Float64) -> Float64:
    """Return how much of `amount` falls into each bin [edges[i], edges[i + 1]).

    Each amount is spread evenly over its interval (at least 1 ns); overlapping ones add up.
    """
    end = np.maximum(end, start + 1)
    return _binned(*_levels(start, end, amount / (end - start)), edges)


def held(start: Int64, end: Int64, level: Float64, edges: Float64) -> Float64:
    """Return the integral over each bin of a level that one thing held: 0 in gaps, the mean in overlaps."""
    at, summed = _levels(start, end, level)
    _, covering = _levels(start, end, np.ones(len(start)))
    return _binned(at, summed / np.maximum(np.rint(covering), 1), edges)


def ramps(start: Int64, end: Int64, final: Float64, edges: Float64) -> Float64:
    """Return the integral over each bin of amounts that grow evenly to `final` at their end, then vanish."""
    slope = final / np.maximum(end - start, 1)
    at = np.concatenate([start, end]).astype(np.float64)
    if not at.size:
        return np.zeros(len(edges) - 1)
    order = np.argsort(at, kind="stable")
    at = at[order]
    rate = np.cumsum(np.concatenate([slope, -slope])[order])
    vanished = np.cumsum(np.concatenate([np.zeros_like(final), final])[order])
    step = np.diff(at)
    level = np.concatenate([[0.0], np.cumsum(rate[:-1] * step)]) - vanished
    area = np.concatenate([[0.0], np.cumsum(level[:-1] * step + rate[:-1] * step**2 / 2)])
    piece = np.searchsorted(at, edges, side="right") - 1
    inside = np.maximum(piece, 0)
    since = np.minimum(edges, at[-1]) - at[inside]
    upto = area[inside] + level[inside] * since + rate[inside] * since**2 / 2
    return np.diff(np.where(piece < 0, 0.0, upto))


def _levels(start: Int64, end: Int64, rate: Float64) -> tuple[Float64, Float64]:
    """Return the times at which the sum of rates changes, and its value from then on."""
    at = np.concatenate([start, end]).astype(np.float64)
    order = np.argsort(at, kind="stable")
    return at[order], np.cumsum(np.concatenate([rate, -rate])[order])


def _binned(at: Float64, level: Float64, edges: Float64) -> Float64:
    if at.size == 0:
        return np.zeros(len(edges) - 1)
    area = np.concatenate([[0.0], np.cumsum(level[:-1] * np.diff(at))])
    return np.diff(np.interp(edges, at, area))


# Service-level objectives, and which requests meet them.
#
# Follows vLLM's bench: a request is good if it completed and every limit that applies to it holds; refused,
# abandoned and unfinished requests are never good. A quantity that a request does not have (TPOT of one
# token) cannot break its limit.

LIMITS = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms")


@dataclass(frozen=True)
class Slo:
    """Upper limits in ms; None = no limit. Raises `ScenarioError` for a limit that is not positive."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    itl_ms: float | None = None
    """Judged over the pooled gaps, not per request (gaps are not stored per request)."""
    e2e_ms: float | None = None
    attainment: float = 0.99
    """Share of the requests that must be within the limits (of the gaps, for ITL)."""
    percentiles: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Further targets, such as {"ttft_ms": {"p99": 1000}}."""

    def __post_init__(self) -> None:
        for name, limit in self.limits().items():
            if not 0 < limit < float("inf"):
                raise ScenarioError(f"slo.{name}: {limit!r} is not a positive number of milliseconds")

    def limits(self) -> dict[str, float]:
        """Return the limits that are set, by name (`ttft_ms` ...)."""
        return {name: limit for name in LIMITS if (limit := getattr(self, name)) is not None}


def missed(slo: Slo, columns: Columns) -> dict[str, Bool]:
    """Return, for each per-request limit, which completed requests break it (bool[n])."""
    values = {"ttft_ms": columns.ttft_ms, "tpot_ms": columns.tpot_ms, "e2e_ms": columns.e2e_ms}
    return {
        name: columns.completed & (values[name] > limit)  # NaN (absent) compares False: not broken
        for name, limit in slo.limits().items()
        if name in values
    }


def good(slo: Slo, columns: Columns) -> Bool:
    """Return which requests completed within every per-request limit (bool[n])."""
    meets = columns.completed.copy()
    for broken in missed(slo, columns).values():
        meets &= ~broken
    return meets
