"""What lies outside vLLM's share of a GPU: there before the engine looks, or taken once the pool is sized.

A start whose pool is sized still runs out of memory, in the sampler's warm-up, if 1 - share cannot hold it.
The lines are the least that starts on H100 showed (vLLM 0.19, llm-d-planner's sweep), so that a start is
refused only where it cannot succeed; fragments of the allocator come on top.
"""

from __future__ import annotations

from simserve.model.ledger import MemoryLedger
from simserve.model.memory_rules import CONTEXT_BYTES, communicator_bytes, graph_bytes
from simserve.model.memory_settings import MemoryLine, MemorySettings
from simserve.model.spec import MoeFfn
from simserve.model.stages import pipeline_stages
from simserve.units import GIB

_EXPERT_COMMUNICATORS = round(0.48 * GIB)
"""Those of the ranks that share experts (Mixtral and Kimi-VL, tp 2)."""


def outside_lines(settings: MemorySettings, stage: int) -> tuple[MemoryLine, ...]:
    """Return what a GPU of that stage must hold outside the share; nothing of engines that reserve for it."""
    rules, degrees = settings.rules, settings.parallelism
    if not rules.activation_inside:
        return ()
    lines = [MemoryLine("CUDA context", CONTEXT_BYTES, "one H100")]
    ranks = degrees.tp * degrees.pp * degrees.dp
    if ranks > 1:
        size = communicator_bytes(ranks, settings.gpu.nvlink is not None)
        lines.append(MemoryLine("communicators", size, f"{ranks} ranks"))
    if degrees.tp * degrees.dp > 1 and settings.gpu.nvlink and _has_experts(settings):
        lines.append(MemoryLine("communicators of experts", _EXPERT_COMMUNICATORS, "tp x dp ranks"))
    if not rules.graphs_inside and not settings.enforce_eager:
        layers = sum(pipeline_stages(settings.spec, degrees.pp)[stage].layers)
        size, basis = graph_bytes(layers, settings.max_num_seqs, settings.gpu.sm_arch, settings.full_graphs)
        lines.append(MemoryLine("CUDA graphs", size, basis))
    return tuple(lines)


def outside_shortage(settings: MemorySettings, ledger: MemoryLedger) -> str:
    """Return why memory runs out after the pool is made, in words; empty if it does not."""
    room = ledger.line("outside the share").bytes
    lines = outside_lines(settings, ledger.stage)
    needed = sum(line.bytes for line in lines)
    if needed <= room:
        return ""
    parts = ", ".join(f"{line.name} {line.bytes / GIB:.2f}" for line in lines)
    largest = (1 - needed / ledger.hbm_bytes) // 0.01 / 100
    return (
        f"{room / GIB:.2f} GiB are left outside the share of {settings.gpu_memory_utilization:g}, and "
        f"{needed / GIB:.2f} GiB are needed there ({parts}): the engine would run out of memory after its "
        f"pool is made. gpu_memory_utilization of at most {largest:g} would leave room"
    )


def _has_experts(settings: MemorySettings) -> bool:
    return any(isinstance(ffn, MoeFfn) for group in settings.spec.layers for ffn in group.ffns)
