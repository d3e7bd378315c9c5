"""Replicas that reach beyond one node, and what is then taken for granted about the links between nodes."""

from __future__ import annotations

from simserve.hardware import GpuSpec
from simserve.latency.kernels.collective import LINK_EFFICIENCY, NETWORK_BYTES_PER_S
from simserve.scenario.moe import expert_ranks
from simserve.scenario.pool_spec import PoolSpec

_LINK = f"one network link of {NETWORK_BYTES_PER_S / 1e9:g} GB/s per GPU"


def beyond_node(spec: PoolSpec, gpu: GpuSpec) -> tuple[str, ...]:
    """Return a line for each kind of parallelism that needs more GPUs than a node has; nothing inside one."""
    most = gpu.gpus_per_node
    has = f"a node of {gpu.name} has {most} GPU{'s' if most != 1 else ''}"
    lines = []
    if spec.tp > most:
        lines.append(
            f"tp {spec.tp}, but {has}: all-reduces are taken to run over {_LINK} at {LINK_EFFICIENCY:.0%}, "
            "which was not measured"
        )
    if expert_ranks(spec) > most:
        what = f"ep {spec.ep}" if spec.afd is None else f"{expert_ranks(spec)} FFN GPUs"
        lines.append(
            f"{what}, but {has}: between nodes dispatch and combine go by the tables of their kernel for as "
            f"many ranks and nodes, and where there is none over {_LINK}"
        )
    elif spec.dp * spec.tp > most >= spec.tp:
        lines.append(
            f"dp {spec.dp} x tp {spec.tp}, but {has}: what attention ranks exchange is taken to run over "
            f"{_LINK} between nodes"
        )
    if spec.pp > 1 and spec.tp * spec.pp > most >= spec.tp:
        lines.append(
            f"tp {spec.tp} x pp {spec.pp}, but {has}: stages are taken to hand over as fast between nodes as "
            "inside one"
        )
    return tuple(lines)
