"""Collectives among the GPUs of one node, from the `collective` table.

An all-reduce takes the engine's own kernel where one was measured and the message is small enough, else NCCL
(as vLLM's custom all-reduce, which wants NVLink for more than two ranks).
"""

from __future__ import annotations

import numpy as np

from simserve.core.operation import Operation
from simserve.latency.kernels.machine import Machine
from simserve.latency.tables.grid import EXTRAPOLATED, Float64, Grid
from simserve.latency.tables.roofline import Cost, LinearOp, analytic

CUSTOM_ALL_REDUCE_MAX_BYTES = 8 * 1024 * 1024
"""Largest message of vLLM's custom all-reduce (its default `max_size`, 8 MiB)."""
HOP_LAUNCH_US = 10.0
"""Start of a transfer between GPUs (assumption)."""
NETWORK_BYTES_PER_S = 50e9
"""RDMA bandwidth per GPU between nodes (one 400 Gb/s NIC per GPU; assumption)."""
PCIE_GPU = "l40s"
"""Whose collectives stand for those of GPUs without NVLink and without a table (PCIe 4.0 x16, through the
host's root complexes: 60 % of the line rate between two GPUs, a sixth of it among four)."""
PCIE_GPU_BYTES_PER_S = 32e9
"""Line rate of its link."""
LINK_EFFICIENCY = 0.8
"""Share of NVLink bandwidth that estimates reach (assumption)."""


def all_reduce(machine: Machine, name: str, ranks: int, bytes_per_row: float, times: int = 1) -> LinearOp:
    """Return the all-reduce of `bytes_per_row` bytes per token over `ranks` GPUs (nothing for one)."""
    nccl = _grid(machine, "all_reduce", "nccl", ranks)
    usable = machine.peaks.has_nvlink or ranks == 2
    custom = _grid(machine, "all_reduce", "custom_graph", ranks) if usable else None
    if nccl is None:
        machine.missing("collective", f"all_reduce over {ranks} GPUs", "ranks", ranks)

    def cost(rows: Float64) -> Cost:
        size = rows * bytes_per_row
        if nccl is None:
            return _estimate(machine, "all_reduce", ranks, size)
        us, tags = nccl.tagged(size)
        if custom is None:
            return Cost(us, tags)
        custom_us, custom_tags = custom.tagged(size)
        small = size <= CUSTOM_ALL_REDUCE_MAX_BYTES
        return Cost(custom_us, custom_tags).where(small, Cost(us, tags))

    return LinearOp(name, cost, times, group=Operation.COLLECTIVES)


def collective(
    machine: Machine, name: str, kind: str, ranks: int, bytes_per_row: float, times: int = 1
) -> LinearOp:
    """Return NCCL's `kind` (all_gather, reduce_scatter, all_to_all); the table's note defines the bytes."""
    grid = _grid(machine, kind, "nccl", ranks)
    if grid is None:
        machine.missing("collective", f"{kind} over {ranks} GPUs", "ranks", ranks)

    def cost(rows: Float64) -> Cost:
        size = rows * bytes_per_row
        return _estimate(machine, kind, ranks, size) if grid is None else Cost(*grid.tagged(size))

    return LinearOp(name, cost, times, group=Operation.COLLECTIVES)


def hand_over(machine: Machine, bytes_per_row: float) -> LinearOp:
    """Return what sending `bytes_per_row` bytes per token to the GPU of the next pipeline stage takes.

    In an all-gather over two GPUs each sends its half to the other: a transfer takes as long as one of twice
    its bytes. Without such a table it is estimated by the link.
    """
    grid = _grid(machine, "all_gather", "nccl", 2)
    if grid is None:
        machine.missing("collective", "transfers between pipeline stages", "ranks", 2)

    def cost(rows: Float64) -> Cost:
        size = rows * (2 * bytes_per_row)
        return _estimate(machine, "all_gather", 2, size) if grid is None else Cost(*grid.tagged(size))

    return LinearOp("hand over", cost, group=Operation.COLLECTIVES)


def _grid(machine: Machine, kind: str, impl: str, ranks: int) -> Grid | None:
    key = ("collective", kind, impl, ranks)
    if key not in machine.cache:
        dtype = "fp16" if impl == "nccl" else "bf16"
        rows = machine.rows("collective", coll=kind, impl=impl, dtype=dtype, ranks=ranks, nodes=1)
        if rows is None and impl == "nccl":
            rows = machine.rows("collective", coll=kind, impl="gloo", ranks=ranks, nodes=1)
            if rows is None and not machine.peaks.has_nvlink:
                machine.cache[key] = _over_pcie(machine, kind, ranks)
                return machine.cache[key]
        machine.cache[key] = (
            None
            if rows is None
            else Grid(
                [rows.numbers("bytes")],
                rows.numbers("latency_us"),
                lambda size: _wire_us(machine, kind, ranks, size),
                trend=True,
            )
        )
    return machine.cache[key]


def _over_pcie(machine: Machine, kind: str, ranks: int) -> Grid | None:
    """Return NCCL's times on a measured GPU whose peers are reached over PCIe too, for one without a table.

    What does not grow with the message stays, the rest goes by the links' line rates. None beyond a node.
    """
    table = machine.profiles.table(PCIE_GPU, "collective")
    if table is None or ranks > machine.gpus_per_node or not machine.allow_analytic:
        return None
    rows = table.select(coll=kind, impl="nccl", dtype="fp16", ranks=ranks, nodes=1)
    if not len(rows):
        return None
    latency_us = rows.numbers("latency_us")
    start_us = float(latency_us.min())
    ratio = PCIE_GPU_BYTES_PER_S / machine.peaks.link_bytes_per_s
    grid = Grid(
        [rows.numbers("bytes")],
        start_us + (latency_us - start_us) * ratio,
        lambda size: _wire_us(machine, kind, ranks, size),
        trend=True,
    )
    grid.trust = EXTRAPOLATED
    note = (
        f"{kind} over {ranks} GPUs: no table {machine.gpu}/collective;"
        f" assumption: as {PCIE_GPU}'s over PCIe, by the links' line rates"
    )
    if note not in machine.estimated:
        machine.estimated.append(note)
    return grid


def _wire_us(machine: Machine, kind: str, ranks: int, size: Float64) -> Float64:
    """Return the time of a ring: each rank sends (ranks - 1) / ranks of the data, twice to reduce."""
    passes = 2.0 if kind == "all_reduce" else 1.0
    inside = ranks <= machine.gpus_per_node
    link = machine.peaks.link_bytes_per_s if inside else NETWORK_BYTES_PER_S
    return np.asarray(size) * (passes * (ranks - 1) / ranks * 1e6 / link)


def _estimate(machine: Machine, kind: str, ranks: int, size: Float64) -> Cost:
    return analytic(HOP_LAUNCH_US + _wire_us(machine, kind, ranks, size) / LINK_EFFICIENCY)
