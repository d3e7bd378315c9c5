"""Holes of a measured grid, filled from the measured points around them.

Each axis proposes a value: linear between the measured neighbours of its line, or the nearest one beyond the
ends. Proposals between neighbours win over those beyond ends; several are averaged, near neighbours counting
more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]


def fill_holes(values: Float64, coordinates: Sequence[Float64]) -> None:
    """Fill NaN in place; `coordinates[a]` are the positions along axis a. At least one value must be
    known."""
    while np.isnan(values).any():
        hole = np.isnan(values)
        between, beyond = (np.zeros((2, *values.shape)) for _ in range(2))
        for axis, places in enumerate(coordinates):
            value, weight, bracketed = _proposals(values, places, axis)
            usable = hole & ~np.isnan(value)
            for total, chosen in ((between, usable & bracketed), (beyond, usable & ~bracketed)):
                total[0] += np.where(chosen, value * weight, 0.0)
                total[1] += np.where(chosen, weight, 0.0)
        summed, weights = np.where(between[1] > 0, between, beyond)
        with np.errstate(invalid="ignore"):
            values[hole] = (summed / weights)[hole]


def _proposals(values: Float64, places: Float64, axis: int) -> tuple[Float64, Float64, NDArray[np.bool_]]:
    """Return what one axis proposes for each hole, its weight, and whether it lies between neighbours."""
    lines = np.moveaxis(values, axis, -1)
    flat = lines.reshape(-1, lines.shape[-1])
    value, weight, bracketed = flat.copy(), np.zeros(flat.shape), np.zeros(flat.shape, bool)
    missing = np.isnan(flat)
    for row in np.flatnonzero(missing.any(1) & ~missing.all(1)):
        known, holes = np.flatnonzero(~missing[row]), np.flatnonzero(missing[row])
        right = np.minimum(np.searchsorted(known, holes), len(known) - 1)
        left = np.maximum(right - 1, 0)
        value[row, holes] = np.interp(places[holes], places[known], flat[row, known])
        inside = (holes > known[0]) & (holes < known[-1])
        gap = places[known[right]] - places[known[left]]
        nearest = np.abs(places[holes] - places[known[np.where(holes < known[0], 0, right)]])
        weight[row, holes] = 1.0 / np.where(inside, gap, nearest)
        bracketed[row, holes] = inside

    def back(array: NDArray[Any]) -> NDArray[Any]:
        return np.moveaxis(array.reshape(lines.shape), -1, axis)

    return back(value), back(weight), back(bracketed)
