"""Where the time of a group's steps went, and how well it is known: measured, interpolated ... by part."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simserve.latency.attention_pages import AttentionPages
from simserve.latency.base import PAGE, PROVENANCE
from simserve.latency.grid import ANALYTIC, Float64
from simserve.latency.table_latency import TableLatency

Int64 = NDArray[np.int64]

PHASES = ("slowest rank", "shared expert", "dispatch", "experts", "combine")
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
