"""The scenario with every option filled in, as YAML that gives the same result when it is run."""

from __future__ import annotations

from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap

from simserve import __version__
from simserve.scenario.compare import FIXED, difference
from simserve.scenario.files import portable
from simserve.scenario.pool import DEFAULT_EXPERT_LOAD, BuiltPool
from simserve.scenario.pool_plan import has_experts
from simserve.scenario.pool_spec import PoolSpec

if TYPE_CHECKING:
    from simserve.scenario.build import Deployment


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
