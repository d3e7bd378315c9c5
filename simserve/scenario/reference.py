"""The reference of scenario files as Markdown: every key with type, unit, default, what is allowed, meaning.

Made from the models that validate scenarios and from everything registered, so it cannot say anything else
than the program does. `python -m simserve.cli.reference` writes it to docs/reference.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from simserve.experts.popularity import POPULARITIES
from simserve.policy.base import POLICIES
from simserve.registry import Registry
from simserve.router.base import ROUTERS
from simserve.scenario.reference_words import allowed_words, default_words, type_words, unit_words
from simserve.scenario.spec import Scenario
from simserve.workload.readers.base import READERS

Schema = dict[str, Any]

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
        "`engine: {preset: vllm-0.33, KEY: ...}`. Defaults here are the policy's own; an engine version sets "
        "many of them: see [engines.md](../engines.md).",
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
