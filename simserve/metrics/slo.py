"""Service-level objectives, and which requests meet them.

Follows vLLM's bench: a request is good if it completed and every limit that applies to it holds; refused,
abandoned and unfinished requests are never good. A quantity that a request does not have (TPOT of one
token) cannot break its limit.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from simserve.errors import ScenarioError
from simserve.metrics.columns import Columns

Bool = NDArray[np.bool_]


@dataclass(frozen=True)
class Slo:
    """Upper limits in ms; None = no limit. Raises `ScenarioError` for a limit that is not positive."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    itl_ms: float | None = None
    """Judged over the pooled gaps, not per request (gaps are not stored per request)."""
    e2e_ms: float | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            limit = getattr(self, field.name)
            if limit is not None and not 0 < limit < float("inf"):
                raise ScenarioError(f"slo.{field.name}: {limit!r} is not a positive number of milliseconds")

    def limits(self) -> dict[str, float]:
        """Return the limits that are set, by name (`ttft_ms` ...)."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}


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
