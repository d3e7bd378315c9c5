"""Which measured attention rows stand for a given shape, and how exactly they do."""

from __future__ import annotations

from dataclasses import dataclass
from math import log2

from simserve.latency.kernels.machine import Machine
from simserve.latency.tables.grid import ANALYTIC, EXTRAPOLATED, MEASURED
from simserve.latency.tables.profiles import ProfileTable
from simserve.latency.tables.roofline import BYTES


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
    chunked: bool = False
    """True if the window does not slide but lies on a grid: a query sees its own chunk's past (Llama 4)."""

    def __str__(self) -> str:
        window = f", window {self.window}" if self.window else ""
        return f"{self.q_heads} query and {self.kv_heads} KV heads of {self.head_dim}{window}"

    @property
    def kv_bytes(self) -> float:
        """Bytes of K and V of one token."""
        return 2.0 * self.kv_heads * self.head_dim * BYTES[self.kv_dtype]


@dataclass(frozen=True)
class StandIn:
    """Measured rows, and the shape that they were measured with."""

    rows: ProfileTable
    heads: Heads
    trust: int
    """Best provenance that a prediction from these rows can have."""


def measured_rows(machine: Machine, op: str, heads: Heads) -> StandIn | None:
    """Return rows of table `op` for these heads; the nearest head size, number of KV heads and window.

    A missing KV dtype is costed by the efficiency of a measured one and counts as analytic (`ProfileError` if
    that is not allowed). Returns None if the table has nothing to offer.
    """
    table = machine.profiles.table(machine.gpu, op)
    if table is None:
        return None
    trust = MEASURED
    table = _of_engine(table, machine.engine, heads)
    rows = table.select(kv_dtype=heads.kv_dtype.replace("fp16", "bf16"))
    if not len(rows):
        machine.missing(op, f"attention with {heads.kv_dtype} KV cache", "kv_dtype", heads.kv_dtype)
        rows, trust = table.select(kv_dtype="bf16"), ANALYTIC
    rows = _same_dtype(rows, heads)
    window = heads.window if heads.window in rows.select(head_dim=heads.head_dim).values("window") else 0
    rows, head_dim = _nearest(rows.select(window=window), "head_dim", heads.head_dim)
    group = heads.q_heads / heads.kv_heads
    rows, kv_heads = _nearest_kv_heads(rows, heads.kv_heads, group)
    if (head_dim, kv_heads, window) != (heads.head_dim, heads.kv_heads, heads.window):
        trust = max(trust, EXTRAPOLATED)
    kv_dtype = heads.kv_dtype if trust < ANALYTIC else "bf16"
    found = Heads(round(group * kv_heads), kv_heads, head_dim, window, heads.dtype, kv_dtype)
    return StandIn(rows, found, trust) if len(rows) else None


def _of_engine(table: ProfileTable, engine: str, heads: Heads) -> ProfileTable:
    """Keep one backend of several: the engine's own where it has our cache and head size, else SGLang's."""
    backends = table.values("backend") if "backend" in table.names else [""]
    if len(backends) == 1 or "sglang" not in backends:
        return table
    alike = table.select(kv_dtype=heads.kv_dtype.replace("fp16", "bf16"), head_dim=heads.head_dim)
    own = engine in alike.values("backend") and not heads.window
    return table.select(backend=engine if own else "sglang")


def _same_dtype(rows: ProfileTable, heads: Heads) -> ProfileTable:
    """Prefer rows computed in our dtype, where they hold our head size with our window or none.

    An fp8 cache is attended in fp8 by FlashAttention 3, so its rows may say fp8 where activations are bf16.
    """
    same = rows.select(dtype=heads.dtype.replace("fp16", "bf16"))
    windows = same.select(head_dim=heads.head_dim).values("window")
    return same if 0 in windows or heads.window in windows else rows


def _nearest(rows: ProfileTable, column: str, wanted: int) -> tuple[ProfileTable, int]:
    value = min(rows.values(column), key=lambda known: abs(log2(known / wanted)))
    return rows.select(**{column: value}), value


def _nearest_kv_heads(rows: ProfileTable, wanted: int, group: float) -> tuple[ProfileTable, int]:
    """Prefer the exact number; else the nearest whose query heads cover the same group size."""
    options = rows.values("kv_heads")
    if wanted not in options:
        covering = [
            kv for kv in options if group * kv <= max(rows.select(kv_heads=kv).values("q_heads"))
        ] or options
        wanted = min(covering, key=lambda known: abs(log2(known / wanted)))
    return rows.select(kv_heads=wanted), wanted
