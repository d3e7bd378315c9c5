"""The JSON Schema of scenario files, with the names that this installation knows."""

from __future__ import annotations

from typing import Any

from simserve.hardware import gpu_names
from simserve.model import preset_names
from simserve.policy.base import POLICIES
from simserve.policy.presets import ENGINES
from simserve.registry import Registry
from simserve.router.base import ROUTERS
from simserve.scenario.component_spec import RouterSpec
from simserve.scenario.spec import Scenario


def scenario_schema() -> dict[str, Any]:
    """Return the schema; the settings of policies and routers are listed by name."""
    schema = Scenario.model_json_schema()
    parts = schema["$defs"]
    parts["EngineSpec"] = _open(parts["EngineSpec"], _settings(POLICIES), "preset", list(ENGINES))
    parts["RouterSpec"] = _open(parts["RouterSpec"], _settings(ROUTERS), "kind", list(ROUTERS))
    _mapping_of(parts["EngineSpec"])["policy"] = {
        "type": "string",
        "description": f"Without a preset: {', '.join(POLICIES)}, or package.module:Class. "
        "Not beside one: the preset says whose policy it is.",
    }
    schema["properties"]["model"]["examples"] = preset_names()
    schema["properties"]["router"]["default"] = RouterSpec.model_fields["kind"].default
    pool = parts["PoolSpec"]["properties"]
    pool["gpu"]["examples"] = gpu_names()
    del pool["engine"]["default"]  # the scenario's engine
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "simserve scenario"}


def _open(spec: dict[str, Any], settings: dict[str, Any], key: str, names: list[str]) -> dict[str, Any]:
    """Allow a bare name beside the mapping, and the settings beside the mapping's own keys."""
    own = {name: value for name, value in spec["properties"].items() if name != "options"}
    own[key] = {**own[key], "examples": names}
    name = {"type": "string", "examples": names}
    mapping = {"type": "object", "properties": {**settings, **own}, "additionalProperties": True}
    return {"description": spec["description"], "anyOf": [name, mapping]}


def _mapping_of(opened: dict[str, Any]) -> dict[str, Any]:
    return opened["anyOf"][1]["properties"]


def _settings(registry: Registry[type]) -> dict[str, Any]:
    """Return the settings of everything registered, by name, saying whose they are.

    Defaults are left out: they differ between owners and engine versions.
    """
    found: dict[str, Any] = {}
    owners: dict[str, list[str]] = {}
    for owner in registry:
        for name, value in registry.get(owner).Params.model_json_schema().get("properties", {}).items():
            found.setdefault(
                name, {key: item for key, item in value.items() if key not in ("default", "title")}
            )
            owners.setdefault(name, []).append(owner)
    for name, value in found.items():
        value["description"] = f"{value.get('description', '')} [{', '.join(owners[name])}]".strip()
    return found
