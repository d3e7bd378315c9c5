"""Where the time of one step goes: the same kernels as the compiled latency, one row each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simserve.core import Chunk
from simserve.core.operation import Operation
from simserve.latency.base import PROVENANCE
from simserve.latency.blocks.plan import AttentionLayers
from simserve.latency.kernels.mixed import DecodesBeside, call_time
from simserve.latency.step_time import OVERHEAD, TableLatency
from simserve.latency.tables.roofline import LinearOp

# Where the busy time of a run went, by group of kernels: the steps that were taken, priced again by part.
#
# Nothing is counted while the run goes on: how often each number of tokens and sequences was computed is
# known
# anyway, and the rest of a step is attention, or what the engine adds.

Int64 = NDArray[np.int64]


class Decoded(NamedTuple):
    """Steps of one decode page (see `StepLatency.decode_page`) that were taken."""

    sequences: int
    page: int
    visits: Int64
    """How often each step was taken, int64[PAGE]."""
    durations_ns: Int64
    level_ns: int = 0
    """What unequal contexts added to the attention of each."""


def op_times(latency: TableLatency, decoded: Iterable[Decoded]) -> dict[str, float]:
    """Return ns by group of all steps taken: those that only decoded, and those that `step_ns` booked."""
    tokens: defaultdict[int, int] = defaultdict(int, latency.token_visits)
    sequences: defaultdict[int, int] = defaultdict(int, latency.sequence_visits)
    found: defaultdict[Operation, float] = defaultdict(float)
    rest = Operation.ENGINE_AND_DRAFTS if latency.makes_drafts else Operation.ENGINE
    for number, page, visits, durations_ns, level_ns in decoded:
        steps = int(visits.sum())
        run_tokens, sampled = latency.decode_counts(number)
        tokens[run_tokens] += steps
        sequences[sampled] += steps
        attention = float((latency.attention_page_ns(number, page) * visits).sum()) + level_ns * steps
        whole = float((durations_ns * visits).sum())
        found[Operation.DECODE_ATTENTION] += attention
        counted = latency.tokens_ns(run_tokens) + latency.sequences_ns(sampled)
        found[rest] += whole - attention - steps * counted
    booked = latency.booked_ns
    found[Operation.MIXED_ATTENTION] += sum(booked[:OVERHEAD])
    found[rest] += booked[OVERHEAD]
    for ops, counts in ((latency.plan.per_token, tokens), (latency.plan.per_sequence, sequences)):
        for group, ns in _op_times_counted(ops, counts).items():
            found[group] += ns
    return {str(group): ns for group, ns in found.items() if ns > 0}


def _op_times_counted(ops: Iterable[LinearOp], visits: Mapping[int, int]) -> dict[Operation, float]:
    """Return ns by group of kernels by count; a count of 0 takes no time."""
    counts = np.array([count for count in visits if count], np.float64)
    times = np.array([visits[count] for count in visits if count], np.float64)
    found: defaultdict[Operation, float] = defaultdict(float)
    if counts.size:
        for op in ops:
            found[op.group] += 1000 * float((op.cost(counts).us * times).sum()) * op.times
    return dict(found)


class OpTime(NamedTuple):
    """One kernel of a step."""

    name: str
    calls: int
    """How often the step runs it (layers of one pipeline stage)."""
    us: float
    """Microseconds of all calls together."""
    provenance: str
    """One of `PROVENANCE`; of several kernels under one name the worst."""
    group: Operation


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
    return [*parts, OpTime("engine overhead", 1, rest_us, "analytic", Operation.ENGINE)]


def _counted(op: LinearOp, count: int) -> OpTime:
    cost = op.cost(np.array([float(count)]))
    return OpTime(op.name, op.times, float(cost.us[0]) * op.times, PROVENANCE[int(cost.tags[0])], op.group)


def _attention(
    latency: TableLatency, decodes: int, decode_context: int, chunks: Sequence[Chunk]
) -> list[OpTime]:
    parts = []
    group = Operation.MIXED_ATTENTION if chunks else Operation.DECODE_ATTENTION
    for layers in latency.plan.attention:
        prices = [layers.prefill.chunk_us(len(chunks), chunk.tokens, chunk.cached) for chunk in chunks]
        chunks_us = sum(us for us, _ in prices) * layers.times
        if prices:
            worst = PROVENANCE[max(tag for _, tag in prices)]
            parts.append(OpTime(f"{layers.name}, prefill", layers.times, chunks_us, worst, group))
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
            parts.append(OpTime(f"{layers.name}, decode", layers.times, us, PROVENANCE[tag], group))
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
            merged[part.name] = part._replace(
                calls=old.calls + part.calls, us=old.us + part.us, provenance=worst
            )
        else:
            merged[part.name] = part
    return list(merged.values())
