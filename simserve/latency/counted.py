"""Kernels whose time depends on one count, summed into an array: one look-up per step."""

from __future__ import annotations

from array import array

import numpy as np

from simserve.latency.costs import LinearOp, by_provenance
from simserve.latency.grid import Float64


class CountedTimes:
    """Time by a count of tokens or sequences. Count 0 takes no time."""

    def __init__(self, ops: list[LinearOp], first: int) -> None:
        """Price counts up to `first`; larger ones when asked for."""
        self._ops = ops
        self._ns: array[int] = array("q", [0])
        self._parts_us: Float64 = np.zeros((4, 1))
        self._grow(first)

    def at(self, count: int) -> int:
        """Return nanoseconds."""
        try:
            return self._ns[count]
        except IndexError:
            self._grow(count)
            return self._ns[count]

    def parts_ns(self, count: int) -> Float64:
        """Return nanoseconds by provenance, float64[4]."""
        self.at(count)
        return self._parts_us[:, count] * 1000

    def _grow(self, count: int) -> None:
        have = len(self._ns)
        size = have
        while size <= count:
            size *= 2
        counts = np.arange(have, size, dtype=np.float64)
        more = by_provenance([(op.cost(counts), op.times) for op in self._ops], len(counts))
        self._parts_us = np.concatenate([self._parts_us, more], axis=1)
        self._ns.frombytes(np.rint(more.sum(0) * 1000).astype(np.int64).tobytes())
