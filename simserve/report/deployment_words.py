"""Deployments as people write them: `4 × B200 SXM`, `2 prefill + 2 decode replicas of 4 × H100 SXM`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simserve.report.headline import gpu_name

_TYPES = {"weights_dtype": "weights", "kv_dtype": "KV cache"}
_IN_THE_POOLS = frozenset({"gpu", "tp", "pp", "dp", "ep", "layout", "ratio", "split"})
"""Choices of a size that its pools say already."""


def deployment_words(pools: Sequence[Mapping[str, Any]]) -> str:
    """Return replicas and GPUs of pools, as a scenario or study.json has them."""
    sides = [pool for pool in pools if pool.get("role") in ("prefill", "decode")]
    if len(pools) == 2 and len(sides) == 2 and len({(_gpus(p), p["gpu"]) for p in pools}) == 1:
        both = " + ".join(f"{pool['replicas']} {pool['role']}" for pool in pools)
        each, gpu = _gpus(pools[0]), gpu_name(pools[0]["gpu"])
        return f"{both} {gpu}" if each == 1 else f"{both} replicas of {each} × {gpu}"
    return " + ".join(_pool(pool) for pool in pools)


def _pool(pool: Mapping[str, Any]) -> str:
    each, replicas, gpu = _gpus(pool), pool["replicas"], gpu_name(pool["gpu"])
    does = "" if pool.get("role", "mixed") == "mixed" else f" for {pool['role']}"
    if each == 1 or replicas == 1:
        return f"{each * replicas} × {gpu}{does}"
    return f"{replicas} replicas of {each} × {gpu}{does}"


def _gpus(pool: Mapping[str, Any]) -> int:
    return (pool.get("tp") or 1) * (pool.get("pp") or 1) * (pool.get("dp") or 1)


def types_words(settings: Mapping[str, Any]) -> str:
    """Return the data types that were chosen: ` with fp8 weights`; empty if none was."""
    found = [f"{settings[key]} {words}" for key, words in _TYPES.items() if key in settings]
    return f" with {' and '.join(found)}" if found else ""


def options_words(settings: Mapping[str, Any]) -> str:
    """Return the other choices: `max_num_batched_tokens 2,048`."""
    left = {name: value for name, value in settings.items() if name not in {*_TYPES, *_IN_THE_POOLS}}
    return ", ".join(
        f"{name} {value:,}" if isinstance(value, int) else f"{name} {value}" for name, value in left.items()
    )
