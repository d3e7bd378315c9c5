"""The measures by which runs are compared: where each stands, its unit, and which direction is better."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

Unit = Literal["ms", "number", "share", "bytes"]


class Measure(NamedTuple):
    """One line of a comparison."""

    key: str
    """Path in a run's figures (see `figures_of`)."""
    label: str
    unit: Unit
    better: Literal["lower", "higher", ""] = ""
    """Empty where neither direction is better in itself."""


def _latency(key: str, words: str) -> list[Measure]:
    return [
        Measure(f"whole.{key}.p50", f"{words}, median", "ms", "lower"),
        Measure(f"whole.{key}.p99", f"{words}, p99", "ms", "lower"),
    ]


MEASURES = (
    *_latency("ttft_ms", "TTFT"),
    *_latency("tpot_ms", "TPOT"),
    *_latency("itl_ms", "ITL"),
    *_latency("e2e_ms", "E2E"),
    *_latency("queueing_ms", "queueing"),
    Measure("counts.completed", "requests completed", "number", "higher"),
    Measure("rates.requests_per_s", "requests/s", "number", "higher"),
    Measure("rates.output_tokens_per_s", "output tokens/s", "number", "higher"),
    Measure("rates.total_tokens_per_s", "prompt + output tokens/s", "number", "higher"),
    Measure("steady.slo.attainment", "SLO attainment", "share", "higher"),
    Measure("rates.goodput_requests_per_s", "goodput, requests/s", "number", "higher"),
    Measure("rates.drain_s", "drain after the last arrival, s", "number"),
    Measure("whole.hit_rate", "prefix hit rate", "share", "higher"),
    Measure("whole.preemptions", "preemptions", "number", "lower"),
    Measure("deployment.recomputed_tokens", "recomputed tokens", "number", "lower"),
    Measure("whole.kv_use_mean", "KV use, mean", "share"),
    Measure("deployment.gpus", "GPUs", "number"),
    Measure("deployment.busy", "busy", "share"),
    Measure("deployment.mfu", "MFU", "share"),
    Measure("deployment.tokens_per_step", "tokens per step", "number"),
    Measure("deployment.kv_tokens", "KV capacity, tokens", "number", "higher"),
    Measure("deployment.kv_bytes_per_token", "KV per token", "bytes", "lower"),
    Measure("deployment.kv_bytes_per_token_per_gpu", "KV per token and GPU", "bytes", "lower"),
    Measure("deployment.decode_flop_per_kv_byte", "attention in decode, FLOP per KV byte", "number"),
    Measure("cost_per_million_output_tokens", "cost per million output tokens", "number", "lower"),
)

_STATISTICS = {"mean": "mean", "p50": "median", "p90": "p90", "p99": "p99"}
_LATENCIES = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "itl_ms": "ITL", "e2e_ms": "E2E"}

AGAINST_MEASURED = (
    *(
        Measure(f"whole.{key}.{statistic}", f"{words}, {name}", "ms")
        for key, words in _LATENCIES.items()
        for statistic, name in _STATISTICS.items()
    ),
    *(measure._replace(better="") for measure in MEASURES if measure.key.startswith("counts.")),
    Measure("whole.requests_per_s", "requests/s", "number"),
    Measure("whole.output_tokens_per_s", "output tokens/s", "number"),
    Measure("whole.total_tokens_per_s", "prompt + output tokens/s", "number"),
)
"""What a client can see: the measures of a simulation beside a load test (nearer is better)."""

_FROM_MANIFEST = ("kv_bytes_per_token", "kv_bytes_per_token_per_gpu", "decode_flop_per_kv_byte")


def figures_of(summary: dict[str, Any], manifest: dict[str, Any]) -> dict[str, Any]:
    """Return the summary of a run with `deployment`: totals over its pools; None where pools disagree."""
    pools, built = summary["pools"], manifest.get("pools") or []
    deployment: dict[str, Any] = {
        "gpus": sum(pool["gpus"] for pool in pools) if pools else None,
        "recomputed_tokens": sum(pool["recomputed_tokens"] for pool in pools) if pools else None,
        "kv_tokens": sum(_kv_tokens(pool) for pool in built) if built else None,
    }
    deployment |= {name: _common(pools, name) for name in ("busy", "mfu", "tokens_per_step")}
    deployment |= {name: _common(built, name) for name in _FROM_MANIFEST}
    return {**summary, "deployment": deployment}


def value_at(figures: dict[str, Any], key: str) -> float | None:
    """Return the figure at a dotted key; None where there is no data."""
    node: Any = figures
    for part in key.split("."):
        node = None if node is None else node.get(part)
    return node


def _kv_tokens(pool: dict[str, Any]) -> int:
    """Return the tokens for which the KV memory of a pool has room: each data-parallel rank has its own."""
    tokens = pool.get("kv_tokens") or (pool.get("kv_blocks") or 0) * (pool.get("block_size") or 0)
    return tokens * (pool.get("dp") or 1) * (pool.get("replicas") or 0)


def _common(pools: list[dict[str, Any]], name: str) -> float | None:
    values = {pool.get(name) for pool in pools}
    return values.pop() if len(values) == 1 else None
