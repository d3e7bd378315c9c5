"""Attention with a KV cache of heads (MHA, GQA, MQA), from the tables `attn_prefill` and `attn_decode`.

Prefill on a cached prefix is in no table. Its rule: (query, key) pairs are paid at the price of the nearest
measured shape, see `PrefillAttention`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np

from simserve.latency.costs import Cost, analytic
from simserve.latency.grid import ANALYTIC, EXTRAPOLATED, INTERPOLATED, MEASURED, Float64, Grid
from simserve.latency.kernels.machine import Machine
from simserve.latency.roofline import BYTES

ATTENTION_LAUNCH_US = 5.0
"""Added to the roofline before the ratio is taken; shapes the interpolation of small calls only."""


@dataclass(frozen=True)
class Heads:
    """Shape of an attention call on one GPU."""

    q_heads: int
    kv_heads: int
    head_dim: int
    window: int
    """Keys that a query sees at most; 0 = all."""
    dtype: str
    kv_dtype: str


class DecodeAttention:
    """One new token for each of n sequences."""

    def __init__(self, machine: Machine, heads: Heads) -> None:
        """Find the table of these heads, or of the nearest number of query heads per KV head."""
        self.machine = machine
        self.heads = heads
        self.grid = _decode_grid(machine, heads)
        if self.grid is None:
            machine.missing("attn_decode", f"decode attention of {heads}")

    def cost(self, sequences: int, context: Float64) -> Cost:
        """Return the cost of `sequences` sequences that attend `context` tokens each."""
        if self.heads.window:
            context = np.minimum(context, float(self.heads.window))
        if self.grid is None:
            work = _decode_work(self.heads, float(sequences), context)
            return analytic(self.machine.peaks.analytic_us(*work, self.heads.dtype))
        return Cost(*self.grid.tagged(float(sequences), context))

    def one_us(self, sequences: int, context: int) -> float:
        """Return the time at one context, without its provenance."""
        if self.grid is None:
            return float(self.cost(sequences, np.array([float(context)])).us[0])
        return self.grid.at_one(float(sequences), float(min(context, self.heads.window or context)))


class PrefillAttention:
    """New tokens of prompts, each possibly on top of cached tokens.

    Without cached tokens: the table. With c cached and q new tokens: as many pairs q*c + q(q+1)/2 as a
    prompt of L tokens has, L(L+1)/2, cost what that prompt costs, or what reading the context costs a
    decode, if more.
    """

    def __init__(self, machine: Machine, heads: Heads, decode: DecodeAttention) -> None:
        """`decode` is the same layer's decode kernel: the limit of one new token."""
        self.machine = machine
        self.heads = heads
        self.decode = decode
        self.grid = _prefill_grid(machine, heads)
        if self.grid is None:
            machine.missing("attn_prefill", f"prefill attention of {heads}")

    def chunk_us(self, batch: int, new: int, cached: int) -> tuple[float, int]:
        """Return microseconds, and their provenance, of one of `batch` equal chunks computed together."""
        pairs = _causal_pairs(new, cached, self.heads.window)
        if self.grid is None:
            work = _prefill_work(self.heads, batch, new, new + cached, batch * pairs)
            return float(self.machine.peaks.analytic_us(*work, self.heads.dtype)) / batch, ANALYTIC
        if not cached:
            us = self.grid.at_one(float(batch), float(new))
            return us / batch, self._tag(batch, new)
        length = (sqrt(8.0 * pairs + 1.0) - 1.0) / 2.0
        us = self.grid.at_one(float(batch), length)
        return max(us, self.decode.one_us(batch, cached + new)) / batch, EXTRAPOLATED

    def _tag(self, batch: int, new: int) -> int:
        assert self.grid is not None
        batches, lengths = self.grid.axes
        if new > lengths[-1] or batch > batches[-1]:
            return EXTRAPOLATED
        return MEASURED if new in lengths and batch in batches else INTERPOLATED


def _causal_pairs(new: int, cached: int, window: int) -> float:
    """Return the (query, key) pairs of `new` queries on `cached` tokens, at most `window` keys each."""
    if not window or cached + new <= window:
        return new * cached + new * (new + 1) / 2
    growing = max(0, window - cached)
    return growing * cached + growing * (growing + 1) / 2 + (new - growing) * window


def _decode_work(heads: Heads, sequences: float, context: Float64) -> tuple[Float64, Float64]:
    pairs = sequences * context
    kv_bytes = 2.0 * heads.kv_heads * heads.head_dim * BYTES[heads.kv_dtype]
    flops = 4.0 * heads.q_heads * heads.head_dim * pairs
    return flops, pairs * kv_bytes + sequences * (4.0 * heads.q_heads * heads.head_dim)


def _prefill_work(heads: Heads, batch: int, new: int, keys: int, pairs: float) -> tuple[float, float]:
    flops = 4.0 * heads.q_heads * heads.head_dim * pairs
    kv_bytes = 2.0 * heads.kv_heads * heads.head_dim * BYTES[heads.kv_dtype]
    return flops, batch * (keys * kv_bytes + new * 4.0 * heads.q_heads * heads.head_dim)


def _rows(machine: Machine, op: str, heads: Heads):
    """Return the rows of these heads: the exact window if measured, else full attention."""
    equal = {
        "kv_dtype": heads.kv_dtype.replace("fp16", "bf16"),
        "dtype": heads.dtype.replace("fp16", "bf16"),
        "kv_heads": heads.kv_heads,
        "head_dim": heads.head_dim,
    }
    rows = machine.rows(op, window=heads.window, **equal)
    return rows if rows is not None or not heads.window else machine.rows(op, window=0, **equal)


def _decode_grid(machine: Machine, heads: Heads) -> Grid | None:
    key = ("attn_decode", heads)
    if key not in machine.cache:
        rows = _rows(machine, "attn_decode", heads)
        machine.cache[key] = (
            None
            if rows is None
            else Grid(
                [rows.numbers("q_heads"), rows.numbers("batch"), rows.numbers("kv_len")],
                rows.numbers("latency_us"),
                lambda q, b, s: (
                    ATTENTION_LAUNCH_US
                    + machine.peaks.us(
                        4.0 * q * heads.head_dim * b * s,
                        b * s * 2.0 * heads.kv_heads * heads.head_dim * BYTES[heads.kv_dtype]
                        + b * q * heads.head_dim * 4.0,
                        heads.dtype,
                    )
                ),
            ).fixed(heads.q_heads)
        )
    return machine.cache[key]


def _prefill_grid(machine: Machine, heads: Heads) -> Grid | None:
    key = ("attn_prefill", heads)
    if key not in machine.cache:
        rows = _rows(machine, "attn_prefill", heads)
        machine.cache[key] = (
            None
            if rows is None
            else Grid(
                [rows.numbers("q_heads"), rows.numbers("batch"), rows.numbers("q_len")],
                rows.numbers("latency_us"),
                lambda q, b, s: (
                    ATTENTION_LAUNCH_US
                    + machine.peaks.us(
                        2.0 * q * heads.head_dim * b * s * (s + 1),
                        b * s * (2.0 * heads.kv_heads * BYTES[heads.kv_dtype] + 4.0 * q) * heads.head_dim,
                        heads.dtype,
                    )
                ),
            ).fixed(heads.q_heads)
        )
    return machine.cache[key]
