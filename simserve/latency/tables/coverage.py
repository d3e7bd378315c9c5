"""How near to the roofline the measured kernels of a GPU come, over their two main axes.

Efficiency is the least possible time (work at the vendor's peak rates, no launch) over the measured time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import floor, log2
from typing import Any, NamedTuple

import numpy as np

from simserve.hardware import GpuSpec
from simserve.latency.kernels.collective import all_reduce, collective
from simserve.latency.kernels.decode import DecodeAttention
from simserve.latency.kernels.exchange import ExpertExchange
from simserve.latency.kernels.expert_rows import SHAPE, Experts
from simserve.latency.kernels.experts import RoutedExperts
from simserve.latency.kernels.gemm import gemm
from simserve.latency.kernels.heads import Heads
from simserve.latency.kernels.machine import Machine
from simserve.latency.kernels.mla import Latent, MlaDecode
from simserve.latency.kernels.mla_prefill import MlaPrefill
from simserve.latency.kernels.prefill import PrefillAttention
from simserve.latency.tables.grid import Float64, Grid
from simserve.latency.tables.profiles import ProfileStore, ProfileTable
from simserve.latency.tables.roofline import BYTES, peaks_of
from simserve.model.layers.mla import LatentShape

# All grids that the kernels build from the tables of one GPU: every shape that was measured.
#
# For looking at the measurements and for hold-out tests, which so see what a simulation would use.

DEEPSEEK = LatentShape(q_heads=128, kv_lora=512, rope=64, nope=128, v_dim=128)
"""The latent and rope sizes that MLA tables were measured with."""


def measured_grids(
    gpu: GpuSpec, profiles: ProfileStore, most_expert_shapes: int = 10_000
) -> list[tuple[tuple[Any, ...], Grid]]:
    """Return (key of the kernel family and shape, grid); each set of rows once.

    `most_expert_shapes` takes every n-th of the many shapes of routed experts, so that about as many remain.
    """
    machine = Machine(gpu.name, peaks_of(gpu), profiles, True, gpu.sm_arch, gpu.gpus_per_node)
    _products(machine)
    _attention(machine)
    _latent_attention(machine)
    _experts(machine, most_expert_shapes)
    _exchanges(machine)
    found: dict[int, tuple[tuple[Any, ...], Grid]] = {}
    for key, value in machine.cache.items():
        for grid in value if isinstance(value, tuple) else (value,):
            if isinstance(grid, Grid):
                found[id(grid.source[1])] = (key, grid)
    return list(found.values())


def _products(machine: Machine) -> None:
    if table := machine.profiles.table(machine.gpu, "gemm"):
        for dtype in table.values("dtype"):
            gemm(machine, "", dtype, 4096, 4096)


def _attention(machine: Machine) -> None:
    for op in ("attn_decode", "attn_prefill"):
        table = machine.profiles.table(machine.gpu, op)
        for kv_heads, head_dim, window, dtype in _distinct(
            table, "kv_heads", "head_dim", "window", "kv_dtype"
        ):
            heads = Heads(kv_heads, kv_heads, head_dim, window, dtype, dtype)
            PrefillAttention(machine, heads, DecodeAttention(machine, heads))


def _latent_attention(machine: Machine) -> None:
    if table := machine.profiles.table(machine.gpu, "mla_decode"):
        for dtype in table.values("kv_dtype"):
            latent = Latent(DEEPSEEK, dtype)
            MlaPrefill(machine, latent, "bf16", MlaDecode(machine, latent, "bf16"))


def _experts(machine: Machine, most_shapes: int) -> None:
    table = machine.profiles.table(machine.gpu, "moe")
    balanced = table.select(load="balanced") if table else None
    shapes = [it for it in _distinct(balanced, *SHAPE, "dtype") if _our_dtype(it[-1]) in BYTES]
    for *shape, dtype in shapes[:: -(-len(shapes) // most_shapes) or 1]:
        RoutedExperts(machine, Experts(*shape, dtype=_our_dtype(dtype)), "balanced")


def _exchanges(machine: Machine) -> None:
    for ranks in (2, 4, 8):
        all_reduce(machine, "", ranks, 1.0)
        for kind in ("all_gather", "reduce_scatter", "all_to_all"):
            collective(machine, "", kind, ranks, 1.0)
    table = machine.profiles.table(machine.gpu, "ep_a2a")
    for shape in _distinct(table, "hidden", "topk", "experts", "ranks", "nodes"):
        for phase in ("dispatch", "combine"):
            ExpertExchange(machine, phase, *shape)


def _our_dtype(dtype: str) -> str:
    return {"int4_wo": "int4", "w4a16_mxfp4": "mxfp4"}.get(dtype, dtype)


def _distinct(table: ProfileTable | None, *names: str) -> Iterator[tuple[Any, ...]]:
    """Yield the distinct combinations of these columns, sorted; nothing without a table."""
    if table is not None:
        columns = [table.column(name).tolist() for name in names]
        yield from sorted(set(zip(*columns, strict=True)))


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
