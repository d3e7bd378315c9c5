"""What a run was made of: versions, hashes, memory ledgers and assumptions.

Holds no machine path and no time stamp, so that the same inputs give the same bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simserve import __version__
from simserve.core import Trace
from simserve.metrics.comparison import requests_sha256
from simserve.model.dtypes import dtype_words
from simserve.scenario.compare import OF_THE_COMPARISON
from simserve.scenario.component_spec import RouterSpec
from simserve.scenario.files import portable
from simserve.scenario.pool import BuiltPool
from simserve.scenario.resolved import pool_settings
from simserve.scenario.spec import Scenario

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
        "workload": scenario.workload.model_dump(mode="json", exclude_none=True, exclude=_OF_THE_FILE),
        "model": _model(deployment),
        "pools": [_pool(pool) for pool in deployment.pools],
        "router": router_words(scenario.router),
        "profiles": {f"{name}.parquet": digest for name, digest in deployment.profiles.hashes().items()},
        "assumptions": assumptions(deployment),
        "currency": scenario.currency,
        "slo": scenario.slo.limits() if scenario.slo else None,
        "slo_asked": scenario.slo.model_dump(include={"attainment", "percentiles"}) if scenario.slo else None,
        "fast_forward": scenario.fast_forward,
        "settings": _settings(deployment),
        **_published(scenario),
    }


def _model(deployment: Deployment) -> dict[str, Any]:
    """Return the preset (or configuration) that was taken, and the name that stood for it, if another."""
    model, called = deployment.model, portable(deployment.loaded.scenario.model, deployment.loaded.folder)
    return {"name": model.name, "source": model.source} | ({} if called == model.name else {"called": called})


def assumptions(deployment: Deployment) -> list[str]:
    """Return what was taken for granted about the system, in words, each once (the trace's are its own)."""
    lines = [f"model {deployment.model.name}: {deployment.model.source}"]
    lines += [line for pool in deployment.pools for line in pool.assumptions]
    lines += deployment.router_assumptions
    lines += deployment.split_assumptions
    lines += [f"profile {note}" for note in deployment.profiles.notes()]
    return list(dict.fromkeys(lines))


def router_words(router: RouterSpec) -> str:
    """Return a router's name with its settings: `random (seed=1)`."""
    settings = ", ".join(f"{name}={value}" for name, value in router.options.items())
    return f"{router.kind} ({settings})" if settings else router.kind


def _published(scenario: Scenario) -> dict[str, Any]:
    """Return the published figures, if the scenario has any."""
    return {"published": scenario.as_mapping()["published"]} if scenario.published else {}


def _settings(deployment: Deployment) -> dict[str, Any]:
    """Return the scenario's settings that are described nowhere else in the manifest."""
    scenario = deployment.loaded.scenario
    exclude = {*_DESCRIBED, *OF_THE_COMPARISON}
    plain = scenario.model_dump(mode="json", exclude_none=True, exclude=exclude)
    return {**plain, "profiles": [portable(name, deployment.loaded.folder) for name in scenario.profiles]}


_OF_THE_FILE = {"trace", "format", "trace_options", "columns", "tokenizer"}
_DESCRIBED = {"name", "seed", "model", "engine", "workload", "pools", "router", "slo", "currency"}


def _trace(trace: Trace) -> dict[str, Any]:
    origin = trace.origin
    return {
        "name": origin.name,
        "format": origin.format,
        "sha256": origin.sha256,
        "assumptions": list(origin.assumptions),
        "changes": list(origin.changes),
        **({"columns": dict(origin.columns)} if origin.columns else {}),
        "requests": len(trace),
        "requests_sha256": requests_sha256(trace.prompt_tokens, trace.output_tokens),
    }


def _pool(pool: BuiltPool) -> dict[str, Any]:
    spec = pool.spec
    return {
        "name": spec.name,
        "gpu": spec.gpu,
        "gpu_name": pool.gpu.title,
        "replicas": spec.replicas,
        "tp": spec.tp,
        "pp": spec.pp,
        "dp": spec.dp,
        "ep": spec.ep,
        "weights_dtype": dtype_words(spec.weights_dtype),
        "kv_dtype": spec.kv_dtype,
        "settings": pool_settings(pool),
        "engine": pool.engine.label,
        "engine_options": pool.engine.options,
        "gpu_memory_utilization": pool.engine.gpu_memory_utilization,
        "ledger": [{"name": row.name, "bytes": row.bytes, "basis": row.basis} for row in pool.ledger.lines],
        "kv_blocks": pool.kv_blocks,
        "kv_tokens": pool.ledger.capacity_tokens(pool.limit.tokens),
        "kv_groups": pool.ledger.kv_groups.words if pool.ledger.kv_groups else None,
        "kv_bytes_per_token": pool.kv_bytes_per_token,
        "kv_bytes_per_token_per_gpu": pool.kv_bytes_per_token_per_gpu,
        "decode_flop_per_kv_byte": pool.decode_flop_per_kv_byte,
        "block_size": pool.engine.block_size,
        "max_model_len": pool.limit.tokens,
        "limit_reason": pool.limit.reason,
        "price_per_gpu_hour": spec.price_per_gpu_hour,
        **_ffn(pool),
    }


def _ffn(pool: BuiltPool) -> dict[str, Any]:
    """Return what FFN GPUs of their own are and hold, if there are any."""
    if pool.ffn is None:
        return {}
    ledger = [{"name": row.name, "bytes": row.bytes, "basis": row.basis} for row in pool.ffn.ledger]
    return {"ffn": {"gpus": pool.ffn.gpus, "gpu_name": pool.ffn.gpu.title, "ledger": ledger}}
