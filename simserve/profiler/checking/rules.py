"""How the simulator's rules for cases without a table do on this machine, where the profiler measured them.

Prompts on a cached prefix by the tile rule alone, decodes of unequal lengths as if all had the mean
context, and decodes beside a prompt chunk: see `docs/latency.md`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from simserve.hardware import GpuSpec
from simserve.latency.kernels.attention import DecodeAttention
from simserve.latency.kernels.heads import Heads
from simserve.latency.kernels.machine import Machine
from simserve.latency.kernels.prefill import PrefillAttention
from simserve.latency.profile_file import ProfileTable
from simserve.latency.profiles import ProfileStore
from simserve.latency.roofline import peaks_of

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
    found = []
    for rule, op, predict in (
        ("prompts on a cached prefix", "attn_prefill", _on_prefix_us),
        ("decodes of unequal lengths", "attn_decode_uneven", _uneven_us),
        ("decodes beside a prompt", "attn_mixed", _mixed_us),
    ):
        table = profiles.table(gpu.name, op)
        ratios = [
            predict(prefill, row) / row["latency_us"]
            for prefill, row in _rows(machine, table)
            if op != "attn_prefill" or row["prefix_len"]
        ]
        if ratios:
            values = np.array(ratios)
            off = np.abs(values - 1)
            middle, high = (float(value) for value in np.quantile(off, (0.5, 0.95)))
            found.append(RuleError(rule, len(values), float(np.median(values)), middle, high))
    return found


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
