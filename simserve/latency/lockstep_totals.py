"""Where the time of a group's steps went, and how well it is known: measured, interpolated ... by part."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simserve.core.operation import Operation
from simserve.latency.base import PAGE, PROVENANCE
from simserve.latency.step_time import TableLatency
from simserve.latency.tables.grid import ANALYTIC, Float64

# Attention times of decode steps for many ranks and steps at once: one array, filled page by page.
#
# A page holds PAGE consecutive mean contexts of a number of sequences (see `StepLatency`); pages are made
# when
# first needed.

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


PHASES = (
    "slowest rank",
    "shared expert",
    Operation.DISPATCH.value,
    Operation.EXPERTS.value,
    Operation.COMBINE.value,
)
MIXED = -1
"""Stands for the row of attention pages in steps with prompt chunks."""


class StepNote(NamedTuple):
    """What k steps are made of, for the books, before any overlap."""

    slowest_ns: Int64
    """The slowest rank's own work in each step, int64[k]."""
    rows: Int64
    """What it computes: a row of the table of attention pages (int64[k]), or `MIXED` with prompt chunks."""
    group_ns: tuple[int, int, int, int]
    """Shared expert, dispatch, experts, combine of each step."""
    group_parts: Float64
    """ns of these by `PROVENANCE`, float64[4]."""
    group_tokens: int
    drafts: tuple[tuple[Int64, StepNote], ...] = ()
    """Durations (int64[k]) and notes of the passes that make drafts, where there are any."""


class LockstepBooks:
    """Sums of notes; shares are asked of the kernels at the end."""

    def __init__(self, rank: TableLatency, pages: AttentionPages) -> None:
        """`rank` made the `pages`."""
        self._rank = rank
        self._pages = pages
        self.forget()

    def forget(self) -> None:
        """Drop what was booked so far."""
        self._total_ns = self._mixed_ns = 0
        self._group_parts = np.zeros(4)
        self._row_ns = np.zeros(len(self._pages))
        """Time by row of the attention pages."""
        self._rank.forget()

    def book(self, note: StepNote, steps: int, total_ns: int) -> None:
        """Book the first `steps` of the noted steps, which took `total_ns`."""
        self._total_ns += total_ns
        self._group_parts += steps * note.group_parts
        local = note.slowest_ns[:steps]
        if note.rows[0] == MIXED:
            self._mixed_ns += int(local.sum())
            return
        if len(self._row_ns) < len(self._pages):
            self._row_ns = np.concatenate([self._row_ns, np.zeros(len(self._pages))])
        np.add.at(self._row_ns, note.rows[:steps], local)

    def step_provenance(self) -> dict[str, float]:
        """Return ns by `PROVENANCE` of all that was booked.

        Where parts overlap they count in proportion; what no kernel explains is the engine's own time.
        """
        total = self._group_parts.copy()
        if self._mixed_ns:
            total += self._mixed_ns * _shares(self._rank.step_provenance())
        ones = np.ones(PAGE, np.int64)
        for sequences, page, row in self._pages.known():
            if row < len(self._row_ns) and self._row_ns[row]:
                shares = _shares(self._rank.decode_provenance(sequences, page, ones))
                total += self._row_ns[row] * shares
        known = float(total.sum())
        if known > self._total_ns:
            total *= self._total_ns / known
        else:
            total[ANALYTIC] += self._total_ns - known
        return dict(zip(PROVENANCE, total.tolist(), strict=True))


def _shares(ns_by_provenance: dict[str, float]) -> Float64:
    shares = np.array([ns_by_provenance[name] for name in PROVENANCE])
    return shares / max(1.0, shares.sum())
