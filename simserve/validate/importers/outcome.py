"""Requests as a load generator measured them: columns that a simulation can be compared with.

Percentiles are recomputed from these columns with one definition (linear interpolation), never read from a
tool's summary, since tools disagree about them. A request without a first token is missing, not zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simserve.errors import TraceError
from simserve.validate.measured import latency_metrics

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class Outcome:
    """Successful requests of one run, columns of length n, and what was left out."""

    source: str
    start_s: Float64 | None
    """Send times from the first; None if the tool does not store them."""
    input_tokens: Int64
    output_tokens: Int64
    ttft_s: Float64
    e2e_s: Float64
    failed: int = 0
    """Requests with an error."""
    left_out: int = 0
    """Requests of a warm-up, cancelled, or without a measured first token."""

    def metrics(self) -> dict[str, float]:
        """Return the statistics that `simserve validate` compares; no rate without send times."""
        if not len(self.ttft_s):
            raise TraceError(f"{self.source}: no request succeeded")
        start_s = np.zeros(len(self.ttft_s)) if self.start_s is None else self.start_s
        found = latency_metrics(
            np.rint(start_s * 1e9).astype(np.int64), self.output_tokens, self.ttft_s, self.e2e_s
        )
        if self.start_s is None:
            del found["requests_per_s"]
        return found
