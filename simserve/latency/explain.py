"""Where the time of one step goes: the same kernels as the compiled latency, one row each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from simserve.core import Chunk
from simserve.latency.base import PROVENANCE
from simserve.latency.blocks.plan import AttentionLayers
from simserve.latency.costs import LinearOp
from simserve.latency.kernels.beside import DecodesBeside, call_time
from simserve.latency.table_latency import TableLatency


class OpTime(NamedTuple):
    """One kernel of a step."""

    name: str
    calls: int
    """How often the step runs it (layers of one pipeline stage)."""
    us: float
    """Microseconds of all calls together."""
    provenance: str
    """One of `PROVENANCE`; of several kernels under one name the worst."""


def explain_step(
    latency: TableLatency, decodes: int, decode_context: int, chunks: Sequence[Chunk] = ()
) -> list[OpTime]:
    """Return the parts of a step in order; their sum is `step_ns` (arguments as there)."""
    tokens = decodes + sum(chunk.tokens for chunk in chunks)
    sequences = decodes + sum(chunk.last for chunk in chunks)
    run_tokens = latency.overhead.padded(tokens) if latency.overhead.captured(tokens) else tokens
    parts = [_counted(op, run_tokens) for op in latency.plan.per_token]
    parts += _attention(latency, decodes, decode_context, chunks)
    parts += [_counted(op, sequences) for op in latency.plan.per_sequence if sequences]
    parts = _merged(parts)
    total_us = latency.quietly_step_ns(decodes, decode_context, chunks) / 1000
    rest_us = total_us - sum(part.us for part in parts)
    return [*parts, OpTime("engine overhead", 1, rest_us, "analytic")]


def _counted(op: LinearOp, count: int) -> OpTime:
    cost = op.cost(np.array([float(count)]))
    return OpTime(op.name, op.times, float(cost.us[0]) * op.times, PROVENANCE[int(cost.tags[0])])


def _attention(
    latency: TableLatency, decodes: int, decode_context: int, chunks: Sequence[Chunk]
) -> list[OpTime]:
    parts = []
    for layers in latency.plan.attention:
        prices = [layers.prefill.chunk_us(len(chunks), chunk.tokens, chunk.cached) for chunk in chunks]
        chunks_us = sum(us for us, _ in prices) * layers.times
        if prices:
            worst = PROVENANCE[max(tag for _, tag in prices)]
            parts.append(OpTime(f"{layers.name}, prefill", layers.times, chunks_us, worst))
        if decodes:
            mean = np.array([float(max(1, decode_context // decodes))])
            beside = layers.prefill.decode_beside(decodes, mean) if chunks else None
            cost = beside.work if beside else latency.attention_cost(layers, decodes, mean)
            us = float(cost.us[0]) * layers.times
            if beside:
                whole_us = _mixed_us(layers, beside, chunks, chunks_us / layers.times)
                us = whole_us * layers.times - chunks_us
            tag = int(cost.tags[0])
            if chunks and layers.mixes:
                ratio, tag = layers.mixes.ratio(decodes, float(mean[0]), chunks)
                us = ratio * (us + chunks_us) - chunks_us
            parts.append(OpTime(f"{layers.name}, decode", layers.times, us, PROVENANCE[tag]))
    return parts


def _mixed_us(
    layers: AttentionLayers, beside: DecodesBeside, chunks: Sequence[Chunk], chunks_us: float
) -> float:
    """Return the time of one layer's call with chunks and decodes (at one context)."""
    with_them = [layers.prefill.chunk_beside(len(chunks), chunk.tokens, chunk.cached) for chunk in chunks]
    decode_us = float(beside.longest_us[0])
    return call_time(
        chunks_us,
        float(beside.work.us[0]) + sum(chunk.work_us for chunk in with_them),
        max(decode_us, *(chunk.longest_us for chunk in with_them)),
        beside.launch_us + decode_us,
        (max(chunk.blocks for chunk in with_them) - 1) * beside.empty_us,
    )


def _merged(parts: list[OpTime]) -> list[OpTime]:
    """Add up parts of one name, in the order of their first appearance."""
    merged: dict[str, OpTime] = {}
    for part in parts:
        if part.name in merged:
            old = merged[part.name]
            worst = max(old.provenance, part.provenance, key=PROVENANCE.index)
            merged[part.name] = OpTime(part.name, old.calls + part.calls, old.us + part.us, worst)
        else:
            merged[part.name] = part
    return list(merged.values())
