"""Service-level objectives, and which requests meet them.

Follows vLLM's bench: a request is good if it completed and every limit that applies to it holds; refused,
abandoned and unfinished requests are never good. A quantity that a request does not have (TPOT of one
token) cannot break its limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simserve.errors import ScenarioError
from simserve.metrics.columns import Columns

Bool = NDArray[np.bool_]
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
