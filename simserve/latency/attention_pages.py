"""Attention times of decode steps for many ranks and steps at once: one array, filled page by page.

A page holds PAGE consecutive mean contexts of a number of sequences (see `StepLatency`); pages are made when
first needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from simserve.latency.base import PAGE

Int64 = NDArray[np.int64]

_FIRST_SEQUENCES = 64
_FIRST_PAGES = 8
_FIRST_ROWS = 16


class AttentionPages:
    """Pages by number of sequences and page number; each is a row of the array."""

    def __init__(self, price: Callable[[int, int], Int64]) -> None:
        """`price` returns a page, int64[PAGE] in ns, from a number of sequences and a page number."""
        self._price = price
        self._row_of = np.full((_FIRST_SEQUENCES, _FIRST_PAGES), -1, np.int64)
        self._rows = np.zeros((_FIRST_ROWS, PAGE), np.int64)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def at(self, sequences: Int64, contexts: Int64) -> Int64:
        """Return ns, int64[r, k], of ranks with `sequences` (int64[r]) at mean `contexts` (int64[r, k])."""
        pages = contexts // PAGE
        self._make(sequences, pages)
        return self._rows[self._row_of[sequences[:, None], pages], contexts % PAGE]

    def row_of(self, sequences: Int64, contexts: Int64) -> Int64:
        """Return the rows of sequences and contexts (int64[k] each) that were looked up before."""
        return self._row_of[sequences, contexts // PAGE]

    def known(self) -> Iterator[tuple[int, int, int]]:
        """Yield (sequences, page, row) of all pages."""
        for sequences, page in np.argwhere(self._row_of >= 0).tolist():
            yield sequences, page, int(self._row_of[sequences, page])

    def _make(self, sequences: Int64, pages: Int64) -> None:
        """Make the pages that are needed and missing."""
        self._reach(int(sequences.max()), int(pages.max()))
        low, high = pages.min(axis=1), pages.max(axis=1)
        wanted = {
            (n, page)
            for n, first, last in zip(sequences.tolist(), low.tolist(), high.tolist(), strict=True)
            for page in range(first, last + 1)
        }
        for n, page in sorted(wanted):
            if self._row_of[n, page] < 0:
                if self._count == len(self._rows):
                    self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
                self._rows[self._count] = self._price(n, page)
                self._row_of[n, page] = self._count
                self._count += 1

    def _reach(self, most: int, last: int) -> None:
        """Let the index reach so many sequences, and that page."""
        shape = self._row_of.shape
        if most >= shape[0] or last >= shape[1]:
            larger = np.full((max(shape[0], 2 * most), max(shape[1], 2 * last)), -1, np.int64)
            larger[: shape[0], : shape[1]] = self._row_of
            self._row_of = larger
