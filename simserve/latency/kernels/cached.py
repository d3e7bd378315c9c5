"""Prompts on a cached prefix where they were measured: the rule of `walk`, put right by the measurements.

Not the time is interpolated but measured / ruled, whose logarithm is linear between measured points in log2
of (prompts, new tokens, cached tokens) and constant outside. So the rule decides between the points and
beyond them, and a measured point returns its measured time. Public tables have no such rows; `simserve
profile run` makes them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from simserve.latency.grid import Grid
from simserve.latency.profile_file import ProfileTable


class CachedPrompts:
    """How much longer prompts on a cached prefix take than the rule says."""

    def __init__(self, rows: ProfileTable, ruled_us: Callable[[int, int, int], float]) -> None:
        """`ruled_us` gives microseconds of (batch, new tokens, cached tokens)."""
        columns = [rows.numbers(name) for name in ("batch", "q_len", "prefix_len")]
        shapes = zip(*(column.astype(int).tolist() for column in columns), strict=True)
        ruled = np.array([ruled_us(*shape) for shape in shapes])
        ratio = rows.numbers("latency_us") / ruled
        self._grid = Grid(columns, ratio, lambda batch, new, cached: 0.0 * batch)

    def correct(self, ruled_us: float, batch: int, new: int, cached: int) -> tuple[float, int]:
        """Return the time that follows from what the rule says, and its provenance."""
        ratio, tag = self._grid.tagged(float(batch), float(new), float(cached))
        return ruled_us * float(ratio), int(tag)


def without_prefix(rows: ProfileTable) -> ProfileTable:
    """Return the prompts that had nothing cached."""
    return rows.where(rows.numbers("prefix_len") == 0) if "prefix_len" in rows.names else rows


def on_a_prefix(rows: ProfileTable) -> ProfileTable | None:
    """Return the prompts on a cached prefix, None if there are none."""
    if "prefix_len" not in rows.names:
        return None
    found = rows.where(rows.numbers("prefix_len") > 0)
    return found if len(found) else None
