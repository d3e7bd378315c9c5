"""The roofline-ratio grid: kernel latencies between measured points.

Not the time is interpolated but the efficiency, roofline time / measured time, whose logarithm is linear between
grid points in log2 coordinates. A measured point returns its measured time. Holes of the grid are
filled along the sweep axis (then along the others): linear between measured points, constant beyond them. Outside the grid:
above, the efficiency of the edge is kept, so time grows as the roofline does; below, the time of the edge is
kept, because a kernel does not get faster than its launch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import product
from math import exp2, log2

import numpy as np
from numpy.typing import ArrayLike, NDArray

Float64 = NDArray[np.float64]
Tags = NDArray[np.uint8]

MEASURED, INTERPOLATED, EXTRAPOLATED, ANALYTIC = range(4)
"""Where a latency comes from, as an index into `base.PROVENANCE`."""

Roofline = Callable[..., Float64]
"""Least possible time in microseconds, from the coordinates (broadcast)."""


class Grid:
    """Latencies over one to four numeric axes; the last axis is the one that the measurement swept."""

    def __init__(self, columns: Sequence[Float64], latency_us: Float64, roofline: Roofline) -> None:
        """`columns` are the coordinates of each measured row, float64[rows] per axis; all positive."""
        self.axes = [np.unique(column) for column in columns]
        self.roofline = roofline
        shape = tuple(len(axis) for axis in self.axes)
        cell = tuple(np.searchsorted(axis, column) for axis, column in zip(self.axes, columns, strict=True))
        self.known = np.zeros(shape, bool)
        self.known[cell] = True
        self._log_efficiency = np.full(shape, np.nan)
        self._log_efficiency[cell] = np.log2(roofline(*columns) / latency_us)
        fill_holes(self._log_efficiency)
        self._prepare()

    def _prepare(self) -> None:
        self._log_axes = [np.log2(axis) for axis in self.axes]
        self._lists = [axis.tolist() for axis in self._log_axes]
        self._strides = [
            int(np.prod(self.known.shape[axis + 1 :], dtype=int)) for axis in range(len(self.axes))
        ]
        self._flat = self._log_efficiency.ravel()
        self._flat_known = self.known.ravel()
        self._flat_list: list[float] = []

    def fixed(self, *leading: float) -> Grid:
        """Return the grid with its first axes fixed at these values, so that fewer remain.

        A cell of the result counts as measured only where all cells that it blends are, and the values hit
        the grid exactly; otherwise its predictions say interpolated or extrapolated.
        """
        values, known = self._log_efficiency, self.known
        clamped = []
        for axis, value in enumerate(leading):
            low, high, weight, _ = _bracket(self._lists[axis], log2(value))
            clamped.append(max(value, float(self.axes[axis][0])))
            exact = weight == 0.0 and value == self.axes[axis][low]
            if weight == 0.0:
                values, known = values[low], known[low] & exact
            else:
                values = values[low] + weight * (values[high] - values[low])
                known = np.zeros_like(known[low])
        rest = object.__new__(Grid)
        rest.axes = self.axes[len(leading) :]
        roofline = self.roofline
        rest.roofline = lambda *coordinates: roofline(*clamped, *coordinates)
        rest._log_efficiency = values
        rest.known = known
        rest._prepare()
        return rest

    def at(self, *coordinates: ArrayLike) -> Float64:
        """Return microseconds at `coordinates` (one array or number per axis, broadcast together)."""
        return self._evaluate(coordinates)[0]

    def tagged(self, *coordinates: ArrayLike) -> tuple[Float64, Tags]:
        """Return microseconds and where each comes from (uint8: MEASURED, INTERPOLATED, EXTRAPOLATED)."""
        time_us, corners, inside = self._evaluate(coordinates)
        shape = np.shape(time_us)
        known, exact = np.ones(shape, bool), np.ones(shape, bool)
        for index, weight in corners:
            used = np.broadcast_to(weight > 0, shape)
            known &= self._flat_known[index] | ~used
            exact &= ~used | (weight == 1)
        tags = np.where(known & exact, MEASURED, INTERPOLATED)
        return time_us, np.where(known & inside, tags, EXTRAPOLATED).astype(np.uint8)

    def at_one(self, *coordinates: float) -> float:
        """Return microseconds at one point: as `at`, in plain Python, which is faster for a single point."""
        if not self._flat_list:
            self._flat_list = self._flat.tolist()
        places = [_bracket(axis, log2(x)) for axis, x in zip(self._lists, coordinates, strict=True)]
        clamped = [max(x, float(axis[0])) for x, axis in zip(coordinates, self.axes, strict=True)]
        log_efficiency = 0.0
        for sides in product((0, 1), repeat=len(places)):
            weight, index = 1.0, 0
            for side, (low, high, upper, _), stride in zip(sides, places, self._strides, strict=True):
                weight *= upper if side else 1.0 - upper
                index += (high if side else low) * stride
            if weight:
                log_efficiency += weight * self._flat_list[index]
        return float(self.roofline(*clamped)) / exp2(log_efficiency)

    def _evaluate(
        self, coordinates: Sequence[ArrayLike]
    ) -> tuple[Float64, list[tuple[NDArray[np.int64], Float64]], NDArray[np.bool_]]:
        """Return times, the (flat index, weight) of each corner used, and what lies inside the grid."""
        sides: list[list[tuple[NDArray[np.int64], Float64]]] = []
        clamped = []
        inside = np.array(True)
        for axis, stride, value in zip(self.axes, self._strides, coordinates, strict=True):
            x = np.asarray(value, np.float64)
            clamped.append(np.maximum(x, axis[0]))
            inside = inside & (x >= axis[0]) & (x <= axis[-1])
            sides.append(_sides(axis, np.clip(x, axis[0], axis[-1]), stride))
        corners = []
        log_efficiency = np.array(0.0)
        for corner in product(*sides):
            index, weight = corner[0]
            for next_index, next_weight in corner[1:]:
                index, weight = index + next_index, weight * next_weight
            corners.append((index, weight))
            log_efficiency = log_efficiency + weight * self._flat[index]
        return self.roofline(*clamped) / np.exp2(log_efficiency), corners, inside


def _sides(axis: Float64, x: Float64, stride: int) -> list[tuple[NDArray[np.int64], Float64]]:
    """Return (flat offset, weight) of the lower and upper neighbour of x on the axis; one if x hits it."""
    low = np.clip(np.searchsorted(axis, x, side="right") - 1, 0, max(len(axis) - 2, 0))
    if len(axis) == 1:
        return [(low * stride, np.ones_like(x))]
    upper = np.log2(x / axis[low]) / np.log2(axis[low + 1] / axis[low])
    if x.ndim == 0 and upper in (0.0, 1.0):
        return [((low + int(upper)) * stride, np.ones_like(x))]
    return [(low * stride, 1.0 - upper), ((low + 1) * stride, upper)]


def _bracket(log_axis: list[float], x: float) -> tuple[int, int, float, bool]:
    """Return (lower cell, upper cell, weight of the upper, inside) of log coordinate x, clamped to the axis."""
    if x <= log_axis[0]:
        return 0, 0, 0.0, x == log_axis[0]
    if x >= log_axis[-1]:
        last = len(log_axis) - 1
        return last, last, 0.0, x == log_axis[-1]
    low = bisect_right(log_axis, x) - 1
    return low, low + 1, (x - log_axis[low]) / (log_axis[low + 1] - log_axis[low]), True


def fill_holes(values: Float64) -> None:
    """Fill NaN in place: linear between known values of a line of the last axis, constant beyond them.

    Lines without any known value are filled along the axis before, and so on.
    """
    for axis in reversed(range(values.ndim)):
        lines = np.moveaxis(values, axis, -1)
        filled = [_fill_line(line) for line in lines.reshape(-1, values.shape[axis])]
        lines[...] = np.stack(filled).reshape(lines.shape)
        if not np.isnan(values).any():
            return


def _fill_line(line: Float64) -> Float64:
    known = np.flatnonzero(~np.isnan(line))
    if len(known) in (0, len(line)):
        return line
    return np.interp(np.arange(len(line)), known, line[known])
