"""How well each table predicts a point of itself that is left out: the error to expect between its points."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from simserve.hardware import GpuSpec
from simserve.latency.grid import Float64, Grid
from simserve.latency.measured_grids import measured_grids
from simserve.latency.profiles import ProfileStore
from simserve.profiler.checking.rows import Suspect

MOST_POINTS = 150
"""Points left out per grid."""
LEAST_POINTS, MOST_ROWS = 12, 40_000
"""A grid is made anew for every point left out: of one with many rows fewer points, but so many at least."""
ENOUGH_POINTS = 1000
"""Points per operation after which its other grids are passed over (the shipped packs have thousands)."""
MOST_EXPERT_SHAPES = 60
"""Of hundreds in the shipped packs."""
OFF = 1.5
"""A point off its neighbours by more than this factor is an outlier."""


class HeldOut(NamedTuple):
    """Errors of one operation, |predicted / measured - 1|."""

    op: str
    points: int
    median: float
    p95: float
    worst: str
    """The point that is predicted worst."""


def held_out(gpu: GpuSpec, profiles: ProfileStore) -> tuple[list[HeldOut], list[Suspect]]:
    """Return the errors of each operation, worst first, and the points far off their neighbours."""
    errors: dict[str, list[tuple[float, str]]] = {}
    outliers: list[Suspect] = []
    for key, grid in measured_grids(gpu, profiles, MOST_EXPERT_SHAPES):
        name = _name(key)
        if len(errors.get(name, ())) >= ENOUGH_POINTS:
            continue
        for index, ratio in _ratios(grid):
            point = " x ".join(f"{column[index]:g}" for column in grid.source[0])
            errors.setdefault(name, []).append((abs(ratio - 1), point))
            if not 1 / OFF < ratio < OFF:
                measured_us = grid.source[1][index]
                why = f"{measured_us:.1f} us, its neighbours say {measured_us * ratio:.1f} us"
                outliers.append(Suspect(name, point, why))
    return sorted((_summary(name, found) for name, found in errors.items()), key=lambda it: -it.p95), outliers


def _summary(name: str, found: list[tuple[float, str]]) -> HeldOut:
    values = np.array([error for error, _ in found])
    return HeldOut(
        name, len(found), float(np.median(values)), float(np.quantile(values, 0.95)), max(found)[1]
    )


def _ratios(grid: Grid) -> list[tuple[int, float]]:
    """Return (row, predicted / measured) of inner points, each predicted without it."""
    columns, latency_us, roofline, trend = grid.source
    inner = _inner(columns)
    most = max(LEAST_POINTS, min(MOST_POINTS, MOST_ROWS // max(1, len(latency_us))))
    step = -(-len(inner) // most) or 1
    found = []
    for index in inner[::step]:
        kept = np.arange(len(latency_us)) != index
        if kept.sum() < 4:
            continue
        rest = Grid([column[kept] for column in columns], latency_us[kept], roofline, trend)
        predicted = float(rest.at(*[column[index] for column in columns]))
        found.append((index, predicted / float(latency_us[index])))
    return found


def _inner(columns: list[Float64]) -> list[int]:
    """Return the rows that lie within the range of the swept axis: beyond its ends nothing interpolates."""
    swept = columns[-1]
    return np.flatnonzero((swept > swept.min()) & (swept < swept.max())).tolist()


def _name(key: tuple[Any, ...]) -> str:
    return f"gemm {key[1]}" if key[0] == "gemm" else str(key[0])
