"""Inter-token gaps of all requests as a weighted histogram, exact in sum and count.

Bins are geometric, 0.4 % wide. Memory does not grow with tokens: gaps are buffered and folded into the bins.
"""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray

from simserve.core import TokenGaps

_RATIO = 1.004
_LOG_RATIO = float(np.log(_RATIO))
_BINS = 11_000  # 1.004 ** 11000 ns is beyond 10^10 s
_BUFFER = 1 << 16


class GapHistogram:
    """Weighted gaps in ns."""

    __slots__ = ("_counts", "_gaps", "_sum_ns", "_weights")

    def __init__(self) -> None:
        self._counts = np.zeros(_BINS, dtype=np.int64)
        self._sum_ns = 0
        self._gaps = array("q")
        self._weights = array("q")

    def add(self, gap_ns: int, weight: int) -> None:
        """Count a gap of `gap_ns` (at least 1) `weight` times."""
        self._gaps.append(gap_ns)
        self._weights.append(weight)
        if len(self._gaps) >= _BUFFER:
            self._flush()

    def add_many(self, gaps_ns: NDArray[np.int64], weights: NDArray[np.int64]) -> None:
        """Count each gap (int64[n], at least 1) as often as its weight (int64[n]) says."""
        used = weights > 0
        gaps, counts = gaps_ns[used], weights[used]
        bins = np.floor(np.log(gaps) / _LOG_RATIO).astype(np.int64)
        np.add.at(self._counts, bins, counts)
        self._sum_ns += sum((gaps * counts).tolist())

    def result(self) -> TokenGaps:
        """Return the non-empty bins, each at its geometric middle."""
        self._flush()
        used = np.flatnonzero(self._counts)
        middle = np.exp((used + 0.5) * _LOG_RATIO)
        return TokenGaps(gap_ns=middle, count=self._counts[used], sum_ns=self._sum_ns)

    def _flush(self) -> None:
        if self._gaps:
            gaps = np.array(self._gaps, dtype=np.int64)
            weights = np.array(self._weights, dtype=np.int64)
            self._gaps, self._weights = array("q"), array("q")
            self.add_many(gaps, weights)
