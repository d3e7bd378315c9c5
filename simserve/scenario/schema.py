"""The JSON Schema of scenario files, with the names that this installation knows."""

from __future__ import annotations

from typing import Any

from simserve.policy.base import POLICIES
from simserve.policy.presets import ENGINES
from simserve.router.base import ROUTERS
from simserve.scenario.spec import Scenario


def scenario_schema() -> dict[str, Any]:
    """Return the schema; the settings of policies and routers are listed by name."""
    schema = Scenario.model_json_schema()
    parts = schema["$defs"]
    parts["EngineSpec"] = _open(parts["EngineSpec"], _settings(POLICIES), "preset", list(ENGINES))
    parts["EngineSpec"]["anyOf"][1]["properties"]["policy"] = {
        "type": "string",
        "description": "Without a preset: "
        f"{', '.join(POLICIES)}, or package.module:Class. Beside a preset: the option of that name.",
    }
    parts["RouterSpec"] = _open(parts["RouterSpec"], _settings(ROUTERS), "kind", list(ROUTERS))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "simserve scenario", **schema}


def _open(spec: dict[str, Any], settings: dict[str, Any], key: str, names: list[str]) -> dict[str, Any]:
    """Allow a bare name beside the mapping, and the settings beside the mapping's own keys."""
    own = {name: value for name, value in spec["properties"].items() if name != "options"}
    own[key] = {**own[key], "examples": names}
    name = {"type": "string", "examples": names}
    mapping = {"type": "object", "properties": {**settings, **own}, "additionalProperties": True}
    return {"description": spec.get("description", ""), "anyOf": [name, mapping]}


def _settings(registry: Any) -> dict[str, Any]:
    """Return the settings of everything registered, by name; of settings with one name the first is shown."""
    found: dict[str, Any] = {}
    for name in registry:
        for key, value in registry.get(name).Params.model_json_schema().get("properties", {}).items():
            found.setdefault(key, value)
    return found
