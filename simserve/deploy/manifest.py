"""What a run was made of: versions, hashes, memory ledgers and assumptions.

Holds no machine path and no time stamp, so that the same inputs give the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap

from simserve import __version__
from simserve.core import Trace
from simserve.deploy.pool import BuiltPool
from simserve.deploy.pool_plan import has_experts
from simserve.deploy.step_latency import DEFAULT_EXPERT_LOAD
from simserve.metrics.comparison import requests_sha256
from simserve.model.dtypes import dtype_words
from simserve.scenario.load import portable
from simserve.scenario.part import RouterSpec
from simserve.scenario.pool_spec import PoolSpec
from simserve.scenario.spec import Scenario
from simserve.scenario.variants import FIXED, OF_THE_COMPARISON, difference

if TYPE_CHECKING:
    from simserve.deploy.build import Deployment


# The scenario with every option filled in, as YAML that gives the same result when it is run.


def resolved_yaml(deployment: Deployment, variants: Mapping[str, Deployment] | None = None) -> str:
    """Return the resolved scenario of a deployment, with the defaults of its engine version.

    With `variants`, what each of them changes in it, so that running the text gives all of them again.
    """
    yaml = YAML()
    yaml.width = 110
    yaml.indent(mapping=2, sequence=4, offset=2)
    text = StringIO()
    text.write(
        f"# Every option of the run, as simserve {__version__} understood it. Relative files are looked up\n"
    )
    text.write(
        "# beside this file, then in the folder where simserve is started, then in the data that ships.\n"
    )
    plain = _resolved(deployment)
    if variants:
        plain["base_name"] = deployment.loaded.scenario.base_name
        plain["compare"] = {name: _change(plain, one) for name, one in variants.items()}
    yaml.dump(_with_names_given(plain, deployment), text)
    return text.getvalue()


def _with_names_given(plain: dict[str, Any], deployment: Deployment) -> CommentedMap:
    """Return the scenario with a comment at each name that was understood as another."""
    given, noted = deployment.loaded.document.data, CommentedMap(plain)
    if plain["model"] != deployment.model.name:
        noted.yaml_add_eol_comment(f"preset {deployment.model.name}", "model")
    pools = [CommentedMap(pool) for pool in plain["pools"]]
    for pool, written in zip(pools, given["pools"], strict=True):
        if pool["gpu"] != written["gpu"]:
            pool.yaml_add_eol_comment(f"given as {written['gpu']}", "gpu")
    noted["pools"] = pools
    return noted


def _change(base: dict[str, Any], variant: Deployment) -> dict[str, Any]:
    """Return what a variant changes in the resolved scenario."""
    return difference(
        *({k: v for k, v in one.items() if k not in FIXED} for one in (base, _resolved(variant)))
    )


def _resolved(deployment: Deployment) -> dict[str, Any]:
    folder = deployment.loaded.folder
    scenario = deployment.loaded.scenario
    plain = scenario.as_mapping()
    plain.pop("compare", None)
    plain.pop("base_name", None)
    plain["model"] = portable(scenario.model, folder)
    plain["workload"] = _workload(deployment, plain["workload"])
    pools = zip(deployment.pools, plain["pools"], strict=True)
    plain["pools"] = [_found_again(_filled_in(pool, plain_pool), folder) for pool, plain_pool in pools]
    plain["profiles"] = [portable(name, folder) for name in scenario.profiles]
    return plain


def _found_again(pool: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the pool with files (recorded expert load, draft model) under names that work from elsewhere."""
    load, drafts = pool.get("expert_load"), pool.get("speculation")
    if isinstance(load, dict) and "path" in load:
        pool = pool | {"expert_load": {**load, "path": portable(str(load["path"]), folder)}}
    if isinstance(drafts, dict) and "model" in drafts:
        pool = pool | {"speculation": {**drafts, "model": portable(str(drafts["model"]), folder)}}
    return pool


def _workload(deployment: Deployment, plain: dict[str, Any]) -> dict[str, Any]:
    if "trace" in plain:
        plain["trace"] = portable(plain["trace"], deployment.loaded.folder)
        plain["format"] = deployment.trace.origin.format
    if "tokenizer" in plain:
        plain["tokenizer"] = portable(plain["tokenizer"], deployment.loaded.folder)
    return plain


def pool_settings(pool: BuiltPool) -> dict[str, Any]:
    """Return every setting of a pool but its engine's, filled in."""
    plain = _filled_in(pool, pool.spec.model_dump(mode="json", exclude_none=True))
    return {name: value for name, value in plain.items() if name not in ("name", "engine")}


def _filled_in(pool: BuiltPool, plain: dict[str, Any]) -> dict[str, Any]:
    """Return the pool with what the engine version, the model and the memory decided, in a fixed order."""
    spec = pool.spec
    given = spec.weights_dtype
    decided: dict[str, Any] = {
        "weights_dtype": given if isinstance(given, str) else given.model_dump(exclude_none=True),
        "kv_dtype": spec.kv_dtype,
        "engine": pool.engine.as_mapping(),
        "max_model_len": pool.limit.tokens,
        "gpu_memory_utilization": pool.engine.gpu_memory_utilization,
    }
    if has_experts(pool.model):
        decided["experts_dtype"] = spec.types.routed_experts
        load = spec.expert_load or DEFAULT_EXPERT_LOAD
        decided["expert_load"] = load if isinstance(load, str) else load.as_mapping()
    if pool.kv_tiers:
        decided["kv_tiers"] = [tier.model_dump(mode="json", exclude_none=True) for tier in pool.kv_tiers]
    both = plain | decided
    return {name: both[name] for name in PoolSpec.model_fields if name in both}


def manifest_of(deployment: Deployment, command: str) -> dict[str, Any]:
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
        **({"balance": deployment.balance} if deployment.balance else {}),
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
    lines += [*deployment.split_assumptions, *([deployment.balance] if deployment.balance else [])]
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
        "prefixes_known": trace.block_ids is not None or origin.format == "synthetic",
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
        "limit_asked": pool.limit.asked,
        "price_per_gpu_hour": spec.price_per_gpu_hour,
        **_ffn(pool),
    }


def _ffn(pool: BuiltPool) -> dict[str, Any]:
    """Return what FFN GPUs of their own are and hold, if there are any."""
    if pool.ffn is None:
        return {}
    ledger = [{"name": row.name, "bytes": row.bytes, "basis": row.basis} for row in pool.ffn.ledger]
    return {"ffn": {"gpus": pool.ffn.gpus, "gpu_name": pool.ffn.gpu.title, "ledger": ledger}}
