"""Suspicious rows of one table: those that scatter, those faster than a smaller shape, those off their
neighbours; and how a table compares with another of the same GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from simserve.latency.profile_file import ProfileTable

FASTER = 0.7
"""A row below this share of the next smaller shape's time counts (the pack's quality bit 2)."""
SCATTER = 0.5
"""A row whose p10 to p90 spans more than this share of its median counts."""
SIZES = frozenset({"m", "tokens", "q_len", "kv_len", "bytes", "prefix_len", "batch"})
"""Columns in which more can only take longer."""


class Suspect(NamedTuple):
    """A row, and what is odd about it."""

    op: str
    row: str
    why: str


def scattered(op: str, table: ProfileTable) -> list[Suspect]:
    """Return the rows whose samples scatter widely."""
    if "p90_us" not in table.names:
        return []
    name = row_names(table)
    spread = (table.numbers("p90_us") - table.numbers("p10_us")) / table.numbers("latency_us")
    return [
        Suspect(op, name(index), f"p10 to p90 spans {spread[index]:.0%} of the median")
        for index in np.flatnonzero(spread > SCATTER).tolist()
    ]


def not_monotone(op: str, table: ProfileTable) -> list[Suspect]:
    """Return the rows that are much faster than the next smaller shape along a size column."""
    found, name = [], row_names(table)
    keys = [key for key in table.about["key_columns"] if key in table.names]
    codes = [np.unique(table.column(key), return_inverse=True)[1] for key in (*keys, "backend")]
    latency_us = table.numbers("latency_us")
    for axis, key in enumerate(keys):
        if key not in SIZES:
            continue
        size = table.numbers(key)
        others = [code for place, code in enumerate(codes) if place != axis]
        order = np.lexsort([size, *others])
        same = np.all([code[order][1:] == code[order][:-1] for code in others], axis=0)
        faster = same & (latency_us[order][1:] < FASTER * latency_us[order][:-1])
        for place in np.flatnonzero(faster).tolist():
            index, smaller = int(order[place + 1]), int(order[place])
            ratio = latency_us[index] / latency_us[smaller]
            why = f"takes {ratio:.0%} of the time at {key}={size[smaller]:.0f}"
            found.append(Suspect(op, name(index), why))
    return found


class Agreement(NamedTuple):
    """Rows of one operation that another table has too: ours over theirs."""

    op: str
    rows: int
    median: float
    p5: float
    p95: float
    theirs: str


def agreement(op: str, ours: ProfileTable, theirs: ProfileTable) -> Agreement | None:
    """Return the ratio of times on shared shapes (of several kernels the fastest); None if none is shared."""
    keys = [key for key in theirs.about["key_columns"] if key in ours.names and key in theirs.names]
    if not set(theirs.about["key_columns"]) <= {*keys, "alpha"}:
        return None
    mine, other = _fastest(ours, keys), _fastest(theirs, keys)
    ratios = np.array([mine[shape] / other[shape] for shape in mine if shape in other])
    if not len(ratios):
        return None
    low, middle, high = (float(value) for value in np.quantile(ratios, (0.05, 0.5, 0.95)))
    return Agreement(op, len(ratios), middle, low, high, ", ".join(theirs.values("backend")))


def _fastest(table: ProfileTable, keys: list[str]) -> dict[tuple[Any, ...], float]:
    columns = [table.column(key).tolist() for key in keys]
    best: dict[tuple[Any, ...], float] = {}
    for *shape, latency_us in zip(*columns, table.numbers("latency_us").tolist(), strict=True):
        at = tuple(shape)
        best[at] = min(latency_us, best.get(at, latency_us))
    return best


def row_names(table: ProfileTable) -> Callable[[int], str]:
    """Return a function that names a row by its key, without columns that have one value only."""
    keys = [key for key in table.about["key_columns"] if len(table.values(key)) > 1]
    columns = {key: table.column(key) for key in keys}
    return lambda index: " ".join(f"{key}={column[index]}" for key, column in columns.items())
