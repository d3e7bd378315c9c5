"""Literal results for tests: a handful of requests with every number chosen by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from simserve.core import PoolFacts, ReplicaResult, Result, Status, Timeline, TokenGaps

MS = 1_000_000
S = 1_000_000_000


def ints(values: Any) -> np.ndarray:
    return np.asarray(values, dtype=np.int64)


def floats(values: Any) -> np.ndarray:
    return np.asarray(values, dtype=np.float64)


def gaps(pairs: list[tuple[int, int]]) -> TokenGaps:
    """[(gap_ns, count)] with one exact gap per bin."""
    pairs = sorted(pairs)
    return TokenGaps(floats([g for g, _ in pairs]), ints([c for _, c in pairs]), sum(g * c for g, c in pairs))


def timeline(rows: list[tuple[float, ...]]) -> Timeline:
    """Rows of (start_ns, end_ns, running, waiting, kv_used_blocks, prefill_tokens, decode_tokens, steps)."""
    table = floats(rows).reshape(-1, 8).T
    return Timeline(ints(table[0]), ints(table[1]), *table[2:])


def replica(**changes: Any) -> ReplicaResult:
    base = ReplicaResult(
        name="main/0",
        pool="main",
        gpus=1,
        kv_blocks=100,
        block_size=16,
        steps=0,
        wakeups=0,
        busy_ns=0,
        prefill_tokens=0,
        decode_tokens=0,
        recomputed_tokens=0,
        preemptions=0,
        linear_tokens=0,
        prefill_pairs=0,
        decode_pairs=0,
        timeline=timeline([]),
    )
    return dataclasses.replace(base, **changes)


POOL = PoolFacts(
    pool="main",
    replicas=1,
    gpus_per_replica=1,
    gpu="gpu",
    peak_flops=1e12,
    hbm_bytes_per_s=1e12,
    flops_per_token=1e9,
    flops_per_pair=1e6,
    weight_bytes=1e9,
    kv_bytes_per_token=1e6,
)


def result(**columns: Any) -> Result:
    """A result whose unnamed request columns say: completed at once, one token, nothing special."""
    arrival = ints(columns.pop("arrival_ns", []))
    n = len(arrival)
    scheduled = ints(columns.pop("first_scheduled_ns", arrival))
    first = ints(columns.pop("first_token_ns", scheduled))
    last = ints(columns.pop("last_token_ns", first))
    base = Result(
        arrival_ns=arrival,
        arrival_order=np.argsort(np.argsort(arrival, kind="stable"), kind="stable").astype(np.int64),
        first_scheduled_ns=scheduled,
        first_token_ns=first,
        last_token_ns=last,
        prompt_tokens=np.full(n, 10, np.int64),
        output_tokens=np.ones(n, np.int64),
        cached_tokens=np.zeros(n, np.int64),
        preemptions=np.zeros(n, np.int64),
        requeued_ns=np.zeros(n, np.int64),
        replica=np.zeros(n, np.int64),
        status=np.full(n, int(Status.COMPLETED), np.int64),
        reason=np.full(n, -1, np.int64),
        reasons=(),
        gaps=gaps([]),
        steady_gaps=gaps([]),
        steady_window=(n // 10, n - n // 10),
        replicas=(replica(),),
        pools=(POOL,),
        provenance_ns={},
        end_ns=int(last.max(initial=0)),
    )
    for name, value in columns.items():
        if isinstance(getattr(base, name), np.ndarray):
            columns[name] = ints(value)
    return dataclasses.replace(base, **columns)
