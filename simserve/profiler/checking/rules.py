"""How the simulator's rules for cases without a table do on this machine, where the profiler measured them.

Prompts on a cached prefix by the tile rule alone, decodes of unequal lengths as if all had the mean context,
decodes beside a prompt chunk, uneven experts: see `docs/latency.md`. Where the simulator reads what was
measured, that is judged too, on points that it does not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from simserve.core import Chunk, Request
from simserve.hardware import GpuSpec
from simserve.latency.kernels.attention import DecodeAttention
from simserve.latency.kernels.expert_counts import expert_counts
from simserve.latency.kernels.expert_shape import Experts
from simserve.latency.kernels.experts import RoutedExperts
from simserve.latency.kernels.heads import Heads
from simserve.latency.kernels.machine import Machine
from simserve.latency.kernels.mixed import AXES, mixes_of
from simserve.latency.kernels.prefill import PrefillAttention
from simserve.latency.profile_file import ProfileTable
from simserve.latency.profiles import ProfileStore
from simserve.latency.roofline import peaks_of

JUDGED = "zipf"
"""Pattern of `moe_counts` that no rule is made of."""
NOBODY = Request(0, 0, 1, 1)
HEADS = ("q_heads", "kv_heads", "head_dim", "window", "dtype", "kv_dtype")


class RuleError(NamedTuple):
    """Predicted over measured of one rule."""

    rule: str
    rows: int
    ratio: float
    """Median of predicted / measured."""
    median: float
    """Median of |predicted / measured - 1|."""
    p95: float


def rule_errors(gpu: GpuSpec, profiles: ProfileStore) -> list[RuleError]:
    """Return the error of each rule whose cases were measured."""
    machine = Machine(gpu.name, peaks_of(gpu), profiles, True, gpu.sm_arch, gpu.gpus_per_node)
    ratios: dict[str, list[float]] = {}
    for rule, op, predict in (
        ("prompts on a cached prefix", "attn_prefill", _on_prefix_us),
        ("decodes of unequal lengths", "attn_decode_uneven", _uneven_us),
        ("decodes beside a prompt", "attn_mixed", _mixed_us),
    ):
        ratios[rule] = [
            predict(prefill, row) / row["latency_us"]
            for prefill, row in _rows(machine, profiles.table(gpu.name, op))
            if op != "attn_prefill" or row["prefix_len"]
        ]
    ratios["the same, by other mixes measured"] = list(_mixes_left_out(machine))
    ratios["uneven experts as even ones"], ratios["the same, by their counts"] = _uneven_experts(machine)
    return [_summary(rule, values) for rule, values in ratios.items() if values]


def _summary(rule: str, ratios: list[float]) -> RuleError:
    values = np.array(ratios)
    middle, high = (float(value) for value in np.quantile(np.abs(values - 1), (0.5, 0.95)))
    return RuleError(rule, len(values), float(np.median(values)), middle, high)


def _mixes_left_out(machine: Machine) -> Iterator[float]:
    """Yield predicted over measured of each mix, as the simulator reads the others."""
    table = machine.profiles.table(machine.gpu, "attn_mixed")
    if table is None or not {"batch", *HEADS} <= set(table.names):
        return
    by_heads = {prefill.heads: prefill for prefill, _ in _rows(machine, table)}
    for heads, prefill in by_heads.items():
        rows = table.select(**{name: getattr(heads, name) for name in HEADS})
        places = np.arange(len(rows))
        for place in places if len(rows) > 2 else ():
            others = mixes_of(rows.where(places != place), prefill.mixed_ruled_us)
            sequences, context, cached, new = (int(rows.column(name)[place]) for name in AXES)
            ratio, _ = others.ratio(sequences, context, [Chunk(NOBODY, new, cached, True)])
            ruled_us = prefill.mixed_ruled_us(sequences, context, cached, new)
            yield ratio * ruled_us / float(rows.numbers("latency_us")[place])


def _uneven_experts(machine: Machine) -> tuple[list[float], list[float]]:
    """Return predicted over measured of experts picked by Zipf's law: as many even picks, and by counts."""
    table = machine.profiles.table(machine.gpu, "moe_counts")
    if table is None or "pattern" not in table.names:
        return [], []
    evenly, counted = [], []
    names = ("dtype", "hidden", "inter", "experts", "topk", "touched", "busiest", "tokens", "latency_us")
    rows = table.select(pattern=JUDGED)
    for row in zip(*(rows.column(name).tolist() for name in names), strict=True):
        dtype, hidden, inter, number, topk, touched, busiest, tokens, measured_us = row
        experts = Experts(hidden, inter, number, topk, 1, 1, dtype)
        picks, reached, most = (np.array([float(it)]) for it in (tokens * topk, touched, busiest))
        even = RoutedExperts(machine, experts, "uniform").cost(np.array([float(tokens)]))
        evenly.append(float(even.us[0]) / measured_us)
        counts = expert_counts(machine, experts)
        if counts is not None:
            counted.append(float(counts.us(picks, reached, most)[0]) / measured_us)
    return evenly, counted


def _rows(machine: Machine, table: ProfileTable | None) -> Iterator[tuple[PrefillAttention, dict[str, Any]]]:
    """Yield the kernels of a row's heads, and the row."""
    if table is None or not {"batch", *HEADS} <= set(table.names):
        return
    names = [*table.about["key_columns"], "latency_us"]
    kernels: dict[Heads, PrefillAttention] = {}
    for values in zip(*(table.column(name).tolist() for name in names), strict=True):
        row = dict(zip(names, values, strict=True))
        heads = Heads(*(row[name] for name in HEADS))
        if heads not in kernels:
            kernels[heads] = PrefillAttention(machine, heads, DecodeAttention(machine, heads))
        yield kernels[heads], row


def _on_prefix_us(prefill: PrefillAttention, row: dict[str, Any]) -> float:
    return prefill.ruled_us(row["batch"], row["q_len"], row["prefix_len"])


def _uneven_us(prefill: PrefillAttention, row: dict[str, Any]) -> float:
    return prefill.decode.one_us(row["batch"], row["kv_len"])


def _mixed_us(prefill: PrefillAttention, row: dict[str, Any]) -> float:
    return prefill.mixed_ruled_us(row["batch"], row["kv_len"], row["prefix_len"], row["q_len"])
