"""All grids that the kernels build from the tables of one GPU: every shape that was measured.

For looking at the measurements and for hold-out tests, which so see what a simulation would use.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from simserve.hardware import GpuSpec
from simserve.latency.grid import Grid
from simserve.latency.kernels.attention import DecodeAttention
from simserve.latency.kernels.collective import all_reduce, collective
from simserve.latency.kernels.exchange import ExpertExchange
from simserve.latency.kernels.expert_shape import SHAPE, Experts
from simserve.latency.kernels.experts import RoutedExperts
from simserve.latency.kernels.gemm import gemm
from simserve.latency.kernels.heads import Heads
from simserve.latency.kernels.machine import Machine
from simserve.latency.kernels.mla import Latent, MlaDecode
from simserve.latency.kernels.mla_prefill import MlaPrefill
from simserve.latency.kernels.prefill import PrefillAttention
from simserve.latency.profile_file import ProfileTable
from simserve.latency.profiles import ProfileStore
from simserve.latency.roofline import BYTES, peaks_of
from simserve.model.spec import MlaAttention

DEEPSEEK = MlaAttention(128, 1536, 512, 128, 64, 128)
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
            latent = Latent(128, DEEPSEEK, dtype)
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
