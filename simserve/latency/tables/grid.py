"""The roofline-ratio grid: kernel latencies between measured points.

We interpolate efficiency (roofline time / measured time), not time itself: its logarithm is linear
between grid points in log2 coordinates. The roofline includes the shortest time in the table, which
stands for the launch. A measured point returns its measured time; holes are filled (see `holes`). Outside
the grid: above, the efficiency of the edge is kept, so time grows as the roofline does; below, the time
of the edge is kept, because a kernel does not get faster than its launch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from copy import copy
from itertools import product
from math import exp2, log2
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

# What lies beyond the end of the swept axis.
#
# By default a grid keeps the efficiency of its edge. Where the last points are still far from the
# roofline's regime (experts that are just turning compute-bound, message sizes that are just filling the
# link) the trend is better: each further unit of roofline time costs what it cost over the last doubling.
# Which operation follows the trend was decided by `benchmarks/leave_out.py` (held-out top quarter, H100:
# experts 27 -> 20 %, DeepEP 9.5 -> 4 %, NCCL 18 -> 13 %; worse for products and decode attention, which
# keep the edge).

Float64 = NDArray[np.float64]

DOUBLINGS = 6
SLOPE_RANGE = (0.3, 2.0)
"""Bounds of the trend's cost per roofline time, relative to the edge's mean cost."""


def trend_points(
    axes: list[Float64], log_efficiency: Float64, roofline: Callable[..., Any]
) -> tuple[Float64, Float64]:
    """Return points beyond the last axis, and their log efficiencies [..., points], that follow the trend."""
    last = axes[-1]
    edge = float(last[-1])
    before = int(np.clip(np.searchsorted(last, edge / 2, side="right") - 1, 0, len(last) - 2))
    others = np.meshgrid(*axes[:-1], indexing="ij")

    def ideal_us(x: float) -> Float64:
        return np.broadcast_to(roofline(*others, np.float64(x)), log_efficiency.shape[:-1])

    ideal_edge, ideal_before = ideal_us(edge), ideal_us(float(last[before]))
    edge_us = ideal_edge / np.exp2(log_efficiency[..., -1])
    before_us = ideal_before / np.exp2(log_efficiency[..., before])
    mean = edge_us / ideal_edge
    step = ideal_edge - ideal_before
    slope = np.where(step > 0, (edge_us - before_us) / np.where(step > 0, step, 1.0), mean)
    slope = np.clip(slope, SLOPE_RANGE[0] * mean, SLOPE_RANGE[1] * mean)
    beyond = edge * 2.0 ** np.arange(1, DOUBLINGS + 1)
    ideal = np.stack([ideal_us(x) for x in beyond], axis=-1)
    time_us = edge_us[..., None] + slope[..., None] * (ideal - ideal_edge[..., None])
    return beyond.astype(np.float64), np.log2(ideal / time_us).astype(np.float64)


# Holes of a measured grid, filled from the measured points around them.
#
# Each axis proposes a value: linear between the measured neighbours of its line, or the nearest one beyond
# the
# ends. Proposals between neighbours win over those beyond ends; several are averaged, near neighbours
# counting
# more.


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


Tags = NDArray[np.uint8]

MEASURED, INTERPOLATED, EXTRAPOLATED, ANALYTIC = range(4)
"""Where a latency comes from, as an index into `base.PROVENANCE`."""

Roofline = Callable[..., Float64]
"""Least possible time in microseconds, from the coordinates (broadcast)."""


class Grid:
    """Latencies over one to four numeric axes; the last axis is the one that the measurement swept."""

    def __init__(
        self, columns: Sequence[Float64], latency_us: Float64, roofline: Roofline, trend: bool = False
    ) -> None:
        """`columns` are the coordinates of each measured row, float64[rows] per axis; all positive.

        `roofline` gives the work at peak rates, without any launch, in microseconds. `trend` follows the
        trend beyond the swept axis instead of keeping the edge's efficiency (see `tails`).
        """
        # Where two kernels were measured for one shape, the faster one is what an engine runs.
        slowest_first = np.argsort(-latency_us, kind="stable")
        columns, latency_us = [column[slowest_first] for column in columns], latency_us[slowest_first]
        self.source = (columns, latency_us, roofline, trend)
        """What the grid was made of (kept by grids derived from it), for hold-out tests."""
        self.axes = [np.unique(column) for column in columns]
        launch_us = self.launch_us = float(latency_us.min())
        self.roofline: Roofline = lambda *coordinates: launch_us + roofline(*coordinates)
        shape = tuple(len(axis) for axis in self.axes)
        cell = tuple(np.searchsorted(axis, column) for axis, column in zip(self.axes, columns, strict=True))
        self.known = np.zeros(shape, bool)
        self.known[cell] = True
        self._log_efficiency = np.full(shape, np.nan)
        self._log_efficiency[cell] = np.log2(self.roofline(*columns) / latency_us)
        fill_holes(self._log_efficiency, [np.log2(axis) for axis in self.axes])
        if trend and len(self.axes[-1]) > 2:
            beyond, log_efficiency = trend_points(self.axes, self._log_efficiency, self.roofline)
            self.axes[-1] = np.concatenate([self.axes[-1], beyond])
            self._log_efficiency = np.concatenate([self._log_efficiency, log_efficiency], axis=-1)
            self.known = np.concatenate([self.known, np.zeros(log_efficiency.shape, bool)], axis=-1)
        self.trust = MEASURED
        """Best provenance that a prediction can have."""
        self._prepare()

    def _prepare(self) -> None:
        self._log_axes = [np.log2(axis) for axis in self.axes]
        self._lists = [axis.tolist() for axis in self._log_axes]
        self._strides = [
            int(np.prod(self.known.shape[axis + 1 :], dtype=int)) for axis in range(len(self.axes))
        ]
        self._flat = self._log_efficiency.ravel()
        self._flat_known = self.known.ravel()
        self._first = [float(axis[0]) for axis in self.axes]
        self._flat_list: list[float] = []

    def fixed(self, *leading: float) -> Grid:
        """Return the grid with its first axes fixed at these values, so that fewer remain."""
        rest = copy(self)
        values, known = self._log_efficiency, self.known
        clamped = []
        for axis, log_axis, value in zip(self.axes, self._lists, leading, strict=False):
            low, weight = _bracket(log_axis, log2(value))
            clamped.append(max(value, float(axis[0])))
            if weight:
                values, known = (
                    values[low] + weight * (values[low + 1] - values[low]),
                    known[low] & known[low + 1],
                )
                rest.trust = max(rest.trust, INTERPOLATED)
            else:
                values, known = values[low], known[low] & (value == axis[low])
        rest.axes = self.axes[len(leading) :]
        roofline = self.roofline
        rest.roofline = lambda *coordinates: roofline(*clamped, *coordinates)
        rest._log_efficiency = values
        rest.known = known
        rest._prepare()
        return rest

    def scaled(self, factor: float) -> Grid:
        """Return the grid of a kernel with `factor` times the work and the same launch and efficiency."""
        other = copy(self)
        roofline, launch_us = self.roofline, self.launch_us
        other.roofline = lambda *coordinates: launch_us + factor * (roofline(*coordinates) - launch_us)
        other.trust = max(other.trust, EXTRAPOLATED)
        return other

    def at(self, *coordinates: ArrayLike) -> Float64:
        """Return microseconds at `coordinates` (one array or number per axis, broadcast together)."""
        return self._evaluate(coordinates)[0]

    def tagged(self, *coordinates: ArrayLike) -> tuple[Float64, Tags]:
        """Return microseconds and where each comes from (uint8: MEASURED, INTERPOLATED, EXTRAPOLATED)."""
        time_us, corners, inside = self._evaluate(coordinates)
        known: Any = inside
        blended: Any = 0.0
        for index, weight in corners:
            known = known & (self._flat_known[index] | (weight == 0.0))
            blended = blended + weight * (1.0 - weight)
        tags = np.where(known, np.where(blended == 0.0, MEASURED, INTERPOLATED), EXTRAPOLATED)
        return time_us, np.broadcast_to(np.maximum(tags, self.trust), time_us.shape).astype(np.uint8)

    def at_one(self, *coordinates: float) -> float:
        """Return microseconds at one point: as `at`, in plain Python, which is faster for a single point."""
        if not self._flat_list:
            self._flat_list = self._flat.tolist()
        corners = [(0, 1.0)]
        clamped = []
        for axis, log_axis, stride, x in zip(
            self._first, self._lists, self._strides, coordinates, strict=True
        ):
            clamped.append(max(x, axis))
            low, upper = _bracket(log_axis, log2(x))
            here = [(low * stride, 1.0 - upper)]
            if upper:
                here.append(((low + 1) * stride, upper))
            corners = [(i + j, v * w) for i, v in corners for j, w in here]
        log_efficiency = sum([weight * self._flat_list[index] for index, weight in corners])
        return float(self.roofline(*clamped)) / exp2(log_efficiency)

    def _evaluate(
        self, coordinates: Sequence[ArrayLike]
    ) -> tuple[Float64, list[tuple[Any, Any]], NDArray[np.bool_]]:
        """Return times, the (flat index, weight) of each corner used, and what lies inside the grid."""
        sides: list[list[tuple[Any, Any]]] = []
        clamped = []
        inside: Any = np.True_
        for axis, log_axis, stride, value in zip(
            self.axes, self._log_axes, self._strides, coordinates, strict=True
        ):
            x = np.maximum(np.asarray(value, np.float64), axis[0])
            clamped.append(x)
            inside = inside & (np.asarray(value) >= axis[0]) & (x <= axis[-1])
            sides.append(_sides(axis, log_axis, np.minimum(x, axis[-1]), stride))
        corners = []
        log_efficiency: Any = 0.0
        for corner in product(*sides):
            index, weight = corner[0]
            for next_index, next_weight in corner[1:]:
                index, weight = index + next_index, weight * next_weight
            corners.append((index, weight))
            log_efficiency = log_efficiency + weight * self._flat[index]
        return self.roofline(*clamped) / np.exp2(log_efficiency), corners, inside


def _sides(axis: Float64, log_axis: Float64, x: Float64, stride: int) -> list[tuple[Any, Any]]:
    """Return (flat offset, weight) of the lower and upper neighbour of x on the axis; one if x hits it."""
    if len(axis) == 1:
        return [(0, np.ones_like(x))]
    low = np.minimum(np.searchsorted(axis, x, side="right") - 1, len(axis) - 2)
    upper = (np.log2(x) - log_axis[low]) / (log_axis[low + 1] - log_axis[low])
    if x.ndim == 0 and upper in (0.0, 1.0):
        return [((low + int(upper)) * stride, np.float64(1.0))]
    return [(low * stride, 1.0 - upper), ((low + 1) * stride, upper)]


def _bracket(log_axis: list[float], x: float) -> tuple[int, float]:
    """Return (lower cell, weight of the next) of log coordinate x, clamped to the axis."""
    if x <= log_axis[0]:
        return 0, 0.0
    if x >= log_axis[-1]:
        return len(log_axis) - 1, 0.0
    low = bisect_right(log_axis, x) - 1
    return low, (x - log_axis[low]) / (log_axis[low + 1] - log_axis[low])


def page_contexts(page: int, size: int) -> Float64:
    """Return the mean contexts of a page of `size` of them, float64[size]; 0 counts as 1."""
    return np.maximum(np.arange(page * size, (page + 1) * size, dtype=np.float64), 1.0)


def whole_ns(us: Float64) -> NDArray[np.int64]:
    """Return microseconds as whole nanoseconds."""
    return np.rint(us * 1000).astype(np.int64)
