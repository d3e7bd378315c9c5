"""How near to the roofline the measured kernels of a GPU come, over their two main axes.

Efficiency is the least possible time (work at the vendor's peak rates, no launch) over the measured time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import floor, log2
from typing import Any, NamedTuple

import numpy as np

from simserve.hardware import GpuSpec
from simserve.latency.grid import Float64, Grid
from simserve.latency.measured_grids import measured_grids
from simserve.latency.profiles import ProfileStore


class HeatMap(NamedTuple):
    """Measured rows of one operation over two axes."""

    operation: str
    x_name: str
    y_name: str
    x: list[float]
    y: list[str]
    efficiency: list[list[float | None]]
    """[y][x]: median over the rows of the cell (1 = roofline); None where nothing was measured."""
    rows: list[list[int]]
    """[y][x]: how many measured rows the cell holds."""


class _Place(NamedTuple):
    """Where the rows of one grid lie: on which map, and on which of its lines (sorted by the number)."""

    operation: str
    x_name: str
    y_name: str
    line: Callable[[list[Float64]], list[tuple[float, str]]]


@dataclass(frozen=True)
class _Row:
    x: float
    line: tuple[float, str]
    efficiency: float


def heat_maps(gpu: GpuSpec, profiles: ProfileStore) -> list[HeatMap]:
    """Return one map for each operation and dtype that the kernels read."""
    rows: dict[tuple[str, str, str], list[_Row]] = {}
    for key, grid in measured_grids(gpu, profiles):
        place = _place(key)
        rows.setdefault(place[:3], []).extend(_rows(grid, place))
    return [_heat_map(*names, found) for names, found in rows.items()]


def _rows(grid: Grid, place: _Place) -> list[_Row]:
    columns, latency_us, roofline, _ = grid.source
    efficiency = np.broadcast_to(roofline(*columns), latency_us.shape) / latency_us
    lines = place.line(columns)
    return [_Row(*row) for row in zip(columns[-1].tolist(), lines, efficiency.tolist(), strict=True)]


def _heat_map(operation: str, x_name: str, y_name: str, rows: list[_Row]) -> HeatMap:
    cells: dict[tuple[tuple[float, str], float], list[float]] = {}
    for row in rows:
        cells.setdefault((row.line, row.x), []).append(row.efficiency)
    x = sorted({row.x for row in rows})
    lines = sorted({row.line for row in rows})
    return HeatMap(
        operation,
        x_name,
        y_name,
        x,
        [name for _, name in lines],
        [[_median(cells.get((line, at))) for at in x] for line in lines],
        [[len(cells.get((line, at), ())) for at in x] for line in lines],
    )


def _median(values: list[float] | None) -> float | None:
    return float(np.median(values)) if values else None


def _place(key: tuple[Any, ...]) -> _Place:
    family, first = key[0], key[1]
    match family:
        case "gemm":
            return _Place(f"products, {first}", "tokens", "weights, 2^n elements", _weights)
        case "attn_decode" | "mla_decode":
            name = "attention" if family == "attn_decode" else "absorbed MLA"
            return _Place(f"{name}, decode, {first.kv_dtype} KV", "context", "sequences", _numbers(1))
        case "attn_prefill" | "mla_prefill":
            name = "attention" if family == "attn_prefill" else "expanded MLA"
            return _Place(f"{name}, prefill, {first.kv_dtype} KV", "prompt tokens", "prompts", _numbers(1))
        case "mla_bmm":
            return _Place(f"MLA, batched products, {key[2]}", "tokens", "heads", _numbers(0))
        case "moe":
            local = first.experts // first.ep
            return _Place(
                f"routed experts, {first.dtype}", "tokens", "experts per GPU", _always(local, f"{local}")
            )
        case "collective":
            kind, impl, ranks = key[1:]
            name = f"{kind.replace('_', '-')} over {ranks}"
            return _Place(f"collectives, {impl}", "bytes", "", _always(ranks, name))
        case _:
            phase, mode, *_, ranks, nodes = key[1:]
            name = f"{phase}, {ranks} GPUs, {nodes} node{'s' if nodes > 1 else ''}"
            return _Place(f"DeepEP, {mode.replace('_', ' ')}", "tokens per GPU", "", _always(ranks, name))


def _numbers(column: int) -> Callable[[list[Float64]], list[tuple[float, str]]]:
    return lambda columns: [(value, f"{value:g}") for value in columns[column].tolist()]


def _always(order: float, name: str) -> Callable[[list[Float64]], list[tuple[float, str]]]:
    return lambda columns: [(order, name)] * len(columns[0])


def _weights(columns: list[Float64]) -> list[tuple[float, str]]:
    """Return the powers of two at or below the numbers of elements."""
    powers = [floor(log2(size)) for size in (columns[0] * columns[1]).tolist()]
    return [(power, f"{power}") for power in powers]
