"""Suspicious rows of one table: those that scatter, those faster than a smaller shape, those off their
neighbours; and how a table compares with another of the same GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from simserve.core import Chunk, Request
from simserve.hardware import GpuSpec
from simserve.latency.base import PROVENANCE
from simserve.latency.compile import compile_step_latency
from simserve.latency.explain import OpTime, explain_step
from simserve.latency.overhead import IDEAL
from simserve.latency.tables.coverage import measured_grids
from simserve.latency.tables.grid import Float64, Grid
from simserve.latency.tables.profiles import ProfileStore, ProfileTable
from simserve.model.spec import ModelSpec, Parallelism

# How much of a model's step time a profile has measured, and what it lacks.

STEPS = (
    ("decode, 1 sequence of 256", 1, 256, 0, 0),
    ("decode, 8 sequences of 512", 8, 512, 0, 0),
    ("decode, 64 sequences of 2,048", 64, 2048, 0, 0),
    ("prompt of 512", 0, 0, 512, 0),
    ("prompt of 512 on 1,024 cached", 0, 0, 512, 1024),
    ("8 decodes of 512, prompt of 256", 8, 512, 256, 0),
)
"""Steps that are looked at: name, decodes, their context, new tokens of a chunk, its cached tokens."""


class StepCoverage(NamedTuple):
    """Where the time of one step comes from."""

    step: str
    ms: float
    shares: dict[str, float]
    """Share of the time by provenance."""
    weakest: list[OpTime]
    """Kernels that were not measured or interpolated, the longest first."""


def coverage(
    model: ModelSpec, gpu: GpuSpec, parallel: Parallelism, dtype: str, profiles: ProfileStore
) -> tuple[list[StepCoverage], list[str]]:
    """Return the coverage of each of `STEPS`, and what had no table at all, in words."""
    latency = compile_step_latency(
        model,
        gpu,
        parallel,
        weights_dtype=dtype,
        kv_dtype=_kv_dtype(dtype),
        overhead=IDEAL,
        profiles=profiles,
    )
    found = []
    for name, decodes, context, new, cached in STEPS:
        chunks = [Chunk(Request(0, 0, new, 1), new, cached, True)] if new else []
        parts = explain_step(latency, decodes, decodes * context, chunks)
        total = sum(part.us for part in parts)
        shares = {
            kind: sum(max(0.0, part.us) for part in parts if part.provenance == kind) / total
            for kind in PROVENANCE
        }
        weak = [part for part in parts if part.provenance in PROVENANCE[2:] and part.us > 0]
        found.append(StepCoverage(name, total / 1000, shares, sorted(weak, key=lambda part: -part.us)[:4]))
    return found, list(latency.estimated)


def _kv_dtype(dtype: str) -> str:
    return dtype if dtype in ("fp32", "fp16") else "bf16"


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


# How well each table predicts a point of itself that is left out: the error to expect between its points.

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
