"""Per-request latencies derived from a result's time stamps, by the definitions of `definitions.py`.

All start at the arrival, so queueing, preemption and recompute are inside them. Columns are float64[n] in
milliseconds; NaN marks a quantity that the request does not have (it never leaves this package).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simserve.core import Result, Status
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
