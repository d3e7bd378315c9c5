"""The reference of scenario files as Markdown: every key with type, unit, default, what is allowed, meaning.

Made from the models that validate scenarios and from everything registered, so it cannot say anything else
than the program does. `python -m simserve.cli.reference` writes it to docs/reference.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from simserve.engines.base import POLICIES
from simserve.engines.presets import DEFAULT_ENGINE, PRESETS
from simserve.experts.popularity import POPULARITIES
from simserve.hardware import gpu_names
from simserve.model import preset_names
from simserve.registry import Registry
from simserve.router.base import ROUTERS
from simserve.scenario.part import RouterSpec
from simserve.scenario.spec import Scenario
from simserve.workload.formats.base import READERS

# JSON Schema of one key in words: its type, unit, default and what is allowed.

Schema = dict[str, Any]

_TYPES = {
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "boolean": "true or false",
    "object": "mapping",
    "null": "null",
}

_UNITS = {
    "_per_gpu_hour": "1 per GPU and hour",
    "_per_s": "1/s",
    "_gb_s": "GB/s",
    "_gib": "GiB",
    "_bytes": "bytes",
    "_tokens": "tokens",
    "_blocks": "blocks",
    "_steps": "steps",
    "_ms": "ms",
    "_us": "us",
    "_s": "s",
}
"""Units by the end of a key's name, longest first."""


def type_words(value: Schema) -> str:
    """Return `whole number`, `list of mappings` ... ; of several, all but null."""
    branches = [one for one in _branches(value) if one.get("type") != "null"]
    return " or ".join(dict.fromkeys(_one_type(one) for one in branches)) or "anything"


def unit_words(name: str) -> str:
    """Return the unit that a key's name ends in."""
    return next(
        (unit for end, unit in _UNITS.items() if name.endswith(end) or (name == end[1:] and len(name) > 1)),
        "",
    )


def default_words(value: Schema) -> str:
    """Return the default as YAML has it; what is empty or made elsewhere is not written."""
    default = value.get("default")
    if isinstance(default, dict) and "options" in default:
        default = next(iter(default.values()))  # a bare name stands for the mapping
    if isinstance(default, dict | list):
        text = json.dumps(default)
        return f"`{text}`" if default and len(text) < 60 else ""
    if default is None and "default" not in value:
        return ""
    return f"`{json.dumps(default)}`" if not isinstance(default, str) else f"`{default}`"


def allowed_words(value: Schema) -> str:
    """Return the choices, or the bounds of numbers and lengths."""
    found = [words for one in _branches(value) if (words := _bounds(one))]
    return ", or ".join(dict.fromkeys(found))


def _branches(value: Schema) -> list[Schema]:
    inner = value.get("anyOf") or value.get("oneOf")
    return [leaf for one in inner for leaf in _branches(one)] if inner else [value]


def _one_type(value: Schema) -> str:
    if "$ref" in value:
        return "mapping"
    if "enum" in value or "const" in value:
        return "choice"
    kind = value.get("type")
    if kind == "array":
        return _list_words(value)
    if kind == "object":
        inner = value.get("additionalProperties")
        return f"mapping to {type_words(inner)}" if isinstance(inner, dict) and inner else "mapping"
    return _TYPES.get(kind or "", "anything")


def _list_words(value: Schema) -> str:
    several = {"whole number": "whole numbers", "number": "numbers", "mapping": "mappings", "text": "texts"}
    if "prefixItems" in value:
        return f"list of {len(value['prefixItems'])} {several[_one_type(value['prefixItems'][0])]}"
    one = type_words(value.get("items") or {})
    return "list" if one == "anything" else f"list of {several.get(one, one)}"


def _bounds(value: Schema) -> str:
    if "const" in value:
        return f"`{value['const']}`"
    if "enum" in value:
        return ", ".join(f"`{word}`" for word in value["enum"])
    if value.get("type") == "array":
        inner = allowed_words(value.get("items") or {})
        least = value.get("minItems", 0)
        return inner or (f"at least {least}" if least and "prefixItems" not in value else "")
    parts = [
        f"{sign} {_number(value[key])}"
        for key, sign in (
            ("exclusiveMinimum", ">"),
            ("minimum", "≥"),
            ("exclusiveMaximum", "<"),
            ("maximum", "≤"),
        )
        if key in value
    ]
    if "pattern" in value:
        parts.append(f"like `{value['pattern']}`")
    return ", ".join(parts)


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


# The JSON Schema of scenario files, with the names that this installation knows.


def scenario_schema() -> dict[str, Any]:
    """Return the schema; the settings of policies and routers are listed by name."""
    schema = Scenario.model_json_schema()
    parts = schema["$defs"]
    parts["EngineSpec"] = _open(parts["EngineSpec"], _schema_settings(POLICIES), "preset", list(PRESETS))
    parts["RouterSpec"] = _open(parts["RouterSpec"], _schema_settings(ROUTERS), "kind", list(ROUTERS))
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


def _schema_settings(registry: Registry[type]) -> dict[str, Any]:
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


_HEAD = "| key | type | unit | default | allowed | meaning |\n|---|---|---|---|---|---|"

_OPEN = {
    "EngineSpec": "Beside these keys, any setting of the policy stands here under its own name: see "
    "[settings of policies](#settings-of-policies). A bare name is its preset.",
    "RouterSpec": "Beside `kind`, the router's own settings: see "
    "[settings of routers](#settings-of-routers). A bare name is its kind.",
    "ExpertLoadSpec": "Beside these keys, the settings of the kind: see "
    "[settings of expert loads](#settings-of-expert-loads).",
}
"""Mappings that also take the settings of a component; their `options` are never written."""

_REGISTRIES: dict[str, tuple[Registry[Any], str]] = {
    "policies": (
        POLICIES,
        f"`engine: {{preset: {DEFAULT_ENGINE}, KEY: ...}}`. Defaults here are the policy's own; an engine "
        "version sets many of them: see [engines.md](../engines.md).",
    ),
    "routers": (ROUTERS, "`router: {kind: NAME, KEY: ...}`."),
    "expert loads": (POPULARITIES, "`expert_load: {kind: NAME, KEY: ...}` of a pool."),
    "trace formats": (READERS, "`workload: {trace: FILE, format: NAME, trace_options: {KEY: ...}}`."),
}


def scenario_reference() -> str:
    """Return the whole page."""
    schema = Scenario.model_json_schema()
    parts = schema["$defs"]
    places = _places(schema, parts)
    titles = {name: _title(name, parts[name], paths) for name, paths in places.items()}
    lines = [
        "# Every key of a scenario",
        "",
        "Made from the models that validate scenarios: `make reference`. The same as JSON Schema, for "
        "completion in editors: `simserve schema`. A dash as default means that the key is required; `null` "
        "that it is not set.",
        "",
        "## The scenario",
        "",
        *_table(schema, parts, titles),
        "",
    ]
    for name, paths in places.items():
        lines += _section(name, paths, parts, titles)
    for title, (registry, use) in _REGISTRIES.items():
        lines += _settings(title, registry, use)
    return "\n".join(lines).rstrip() + "\n"


def _places(schema: Schema, parts: dict[str, Schema]) -> dict[str, list[str]]:
    """Return the paths at which each part may stand, in the order in which a reader meets them."""
    found: dict[str, list[str]] = {}
    waiting: list[tuple[str, Schema]] = [("", schema)]
    while waiting:
        path, node = waiting.pop(0)
        for key, value in node.get("properties", {}).items():
            for name, suffix in _references(value):
                place = f"{path}.{key}{suffix}".lstrip(".")
                if name not in found:
                    waiting.append((place, parts[name]))
                if place not in found.setdefault(name, []):
                    found[name].append(place)
    return found


def _references(value: Schema) -> Iterator[tuple[str, str]]:
    """Return (part, what follows the key in a path) for every part that a value may be made of."""
    if "$ref" in value:
        yield value["$ref"].rpartition("/")[2], ""
    for branch in (*value.get("anyOf", []), *value.get("oneOf", [])):
        yield from _references(branch)
    for inner, suffix in ((value.get("items"), "[]"), (value.get("additionalProperties"), ".NAME")):
        if isinstance(inner, dict):
            for name, rest in _references(inner):
                yield name, suffix + rest


def _title(name: str, part: Schema, paths: list[str]) -> str:
    kind = part.get("properties", {}).get("kind", {}).get("const")
    last = paths[0].rpartition(".")[2].removesuffix("[]")
    own = f"{last}: {kind}" if kind else paths[0].replace("[]", "")
    return own if kind or "NAME" not in own else name.removesuffix("Spec")


def _section(name: str, paths: list[str], parts: dict[str, Schema], titles: dict[str, str]) -> list[str]:
    at = ", ".join(f"`{path}`" for path in paths)
    part = parts[name]
    lines = [f"## {titles[name]}", "", f"At {at}. {_sentence(part.get('description', ''))}".strip(), ""]
    if name in _OPEN:
        lines += [_OPEN[name], ""]
        part = {**part, "properties": {k: v for k, v in part["properties"].items() if k != "options"}}
    return [*lines, *_table(part, parts, titles), ""]


def _table(part: Schema, parts: dict[str, Schema], titles: dict[str, str]) -> list[str]:
    """Return one row per key of a mapping; `parts` and `titles` are those that its values may be made of."""
    required = set(part.get("required", []))
    rows = [_row(key, value, key in required, parts, titles) for key, value in part["properties"].items()]
    return [_HEAD, *rows]


def _row(key: str, value: Schema, required: bool, parts: dict[str, Schema], titles: dict[str, str]) -> str:
    found = dict.fromkeys(name for name, _ in _references(value))
    links = ", ".join(f"[{titles[name]}](#{_anchor(titles[name])})" for name in found if name in titles)
    meaning = value.get("description") or " ".join(parts[name].get("description", "") for name in found)
    if not meaning and "const" in value:
        meaning = "Says which of the kinds this is."
    cells = (
        f"`{key}`",
        f"{type_words(value)}: {links}" if links else type_words(value),
        unit_words(key),
        "–" if required else default_words(value),
        allowed_words(value),
        _sentence(meaning),
    )
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def _anchor(title: str) -> str:
    """Return what a heading is called in links, as GitHub makes it."""
    return "".join(c for c in title.lower().replace(" ", "-") if c.isalnum() or c in "-_")


def _settings(title: str, registry: Registry[Any], use: str) -> list[str]:
    """Return a section with the settings of everything registered."""
    lines = [f"## Settings of {title}", "", use, ""]
    bare = []
    for name in registry:
        params = _params(registry.get(name))
        if not params.get("properties"):
            bare.append(f"`{name}`")
            continue
        lines += [f"### {name}", "", *_table(params, params.get("$defs", {}), {}), ""]
    if bare:
        lines += [f"Without settings: {', '.join(bare)}.", ""]
    return lines


def _params(component: Any) -> Schema:
    """Return the schema of a component's settings: its own, or those of its `Params` or `Options`."""
    model = getattr(component, "Params", None) or getattr(component, "Options", component)
    return model.model_json_schema() if issubclass(model, BaseModel) else {}


def _sentence(text: str) -> str:
    """Return a description as one line, with upper case and a full stop."""
    line = " ".join(text.split("\n\n")[0].split())
    return line if not line or line[-1] in ".:?" else line + "."
