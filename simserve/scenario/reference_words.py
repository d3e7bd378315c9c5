"""JSON Schema of one key in words: its type, unit, default and what is allowed."""

from __future__ import annotations

import json
from typing import Any

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
