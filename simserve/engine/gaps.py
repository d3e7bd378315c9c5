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
_BUFFER = 3 << 16


class GapHistogram:
    """Weighted gaps in ns."""

    __slots__ = ("_counts", "_sum_ns")

    def __init__(self) -> None:
        self._counts = np.zeros(_BINS, dtype=np.int64)
        self._sum_ns = 0

    def add_many(self, gaps_ns: NDArray[np.int64], weights: NDArray[np.int64]) -> None:
        """Count each gap (int64[n], at least 1) as often as its weight (int64[n]) says."""
        used = weights > 0
        gaps, counts = gaps_ns[used], weights[used]
        bins = np.floor(np.log(gaps) / _LOG_RATIO).astype(np.int64)
        np.add.at(self._counts, bins, counts)
        self._sum_ns += sum((gaps * counts).tolist())

    def result(self) -> TokenGaps:
        """Return the non-empty bins, each at its geometric middle."""
        used = np.flatnonzero(self._counts)
        middle = np.exp((used + 0.5) * _LOG_RATIO)
        return TokenGaps(gap_ns=middle, count=self._counts[used], sum_ns=self._sum_ns)


class GapRecorder:
    """Gaps of all requests, and of those in the steady window, with one buffer for both."""

    __slots__ = ("_buffer", "_every", "_steady")

    def __init__(self) -> None:
        self._every = GapHistogram()
        self._steady = GapHistogram()
        self._buffer = array("q")

    def add(self, gap_ns: int, count: int, steady: int) -> None:
        """Count a gap of `gap_ns` (at least 1) for `count` answers, `steady` of them in the steady window."""
        self._buffer.extend((gap_ns, count, steady))
        if len(self._buffer) >= _BUFFER:
            self._flush()

    def add_many(
        self, gaps_ns: NDArray[np.int64], counts: NDArray[np.int64], steady: NDArray[np.int64]
    ) -> None:
        """Count each gap for as many answers (int64[n] each)."""
        self._every.add_many(gaps_ns, counts)
        self._steady.add_many(gaps_ns, steady)

    def results(self) -> tuple[TokenGaps, TokenGaps]:
        """Return the gaps of all answers, and those of the steady window."""
        self._flush()
        return self._every.result(), self._steady.result()

    def _flush(self) -> None:
        gaps_ns, counts, steady = np.array(self._buffer, dtype=np.int64).reshape(-1, 3).T
        self._buffer = array("q")
        self.add_many(gaps_ns, counts, steady)
