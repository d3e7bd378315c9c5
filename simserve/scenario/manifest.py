"""What a run was made of: versions, hashes, memory ledgers and assumptions.

Holds no machine path and no time stamp, so that the same inputs give the same bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simserve import __version__
from simserve.core import Trace
from simserve.scenario.pool import BuiltPool

if TYPE_CHECKING:
    from simserve.scenario.build import Deployment


def manifest(deployment: Deployment, command: str) -> dict[str, Any]:
    """Return the manifest of a deployment; `command` is what remakes it."""
    scenario = deployment.loaded.scenario
    return {
        "simserve_version": __version__,
        "command": command,
        "scenario_name": scenario.name,
        "seed": scenario.seed,
        "trace": _trace(deployment.trace),
        "model": deployment.model.name,
        "pools": [_pool(pool) for pool in deployment.pools],
        "router": {"kind": scenario.router.kind, **scenario.router.options},
        "profiles": {f"{name}.parquet": sha256 for name, sha256 in deployment.profiles.hashes().items()},
        "assumptions": assumptions(deployment),
        "slo": scenario.slo.model_dump(exclude_none=True) if scenario.slo else None,
        "fast_forward": scenario.fast_forward,
    }


def assumptions(deployment: Deployment) -> list[str]:
    """Return everything that was taken for granted, in words, each once."""
    lines = [f"model {deployment.model.name}: {deployment.model.source}"]
    lines += [f"trace: {text}" for text in deployment.trace.origin.assumptions]
    lines += [line for pool in deployment.pools for line in pool.assumptions]
    lines += [f"profile {note}" for note in deployment.profiles.notes()]
    return list(dict.fromkeys(lines))


def _trace(trace: Trace) -> dict[str, Any]:
    origin = trace.origin
    return {
        "name": origin.name,
        "format": origin.format,
        "sha256": origin.sha256,
        "assumptions": list(origin.assumptions),
        "changes": list(origin.changes),
        "requests": len(trace),
    }


def _pool(pool: BuiltPool) -> dict[str, Any]:
    spec = pool.spec
    return {
        "name": spec.name,
        "gpu": spec.gpu,
        "gpu_name": pool.gpu.name,
        "replicas": spec.replicas,
        "tp": spec.tp,
        "pp": spec.pp,
        "dp": spec.dp,
        "ep": spec.ep,
        "weights_dtype": spec.weights_dtype,
        "kv_dtype": spec.kv_dtype,
        "engine": pool.engine.label,
        "engine_options": pool.engine.options,
        "gpu_memory_utilization": pool.engine.gpu_memory_utilization,
        "ledger": [{"name": row.name, "bytes": row.bytes, "basis": row.basis} for row in pool.ledger.rows],
        "kv_blocks": pool.kv_blocks,
        "block_size": pool.engine.block_size,
        "max_model_len": pool.limit.tokens,
        "limit_reason": pool.limit.reason,
        "price_per_gpu_hour": spec.price_per_gpu_hour,
    }
