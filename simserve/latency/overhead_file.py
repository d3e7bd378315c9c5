"""Engine overhead constants in a small YAML file: the constants of a named engine, and those that differ.

Written by `simserve calibrate`, cited by a scenario as `engine.overhead: file.yaml`.
"""

from __future__ import annotations

from dataclasses import fields, replace
from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from simserve.errors import ScenarioError, nearest
from simserve.latency.overhead import EngineOverhead, overhead_named

_HEADINGS = ("base", "provenance", "fit")
NUMBERS = tuple(field.name for field in fields(EngineOverhead) if field.name.endswith("_us"))
"""Constants that a file may change (microseconds)."""


def read_overhead(path: Path) -> EngineOverhead:
    """Return the constants of a file; raises `ScenarioError` naming file, key and value."""
    try:
        data = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    except YAMLError as error:
        raise ScenarioError(f"{path.name}: not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(data, dict) or "base" not in data:
        raise ScenarioError(f"{path.name}: overhead constants need 'base', the engine that they depart from")
    base = overhead_named(str(data["base"]))
    values = {key: _number(path, key, value) for key, value in data.items() if key not in _HEADINGS}
    provenance = {**base.provenance, **(data.get("provenance") or {})}
    return replace(base, name=path.name, provenance=provenance, **values)


def overhead_yaml(
    base: str, values: dict[str, float], provenance: dict[str, str], fit: dict[str, Any]
) -> str:
    """Return the text of such a file; `fit` says how good the constants are, for readers."""
    text = StringIO()
    yaml = YAML()
    yaml.width = 110
    yaml.dump({"base": base, **values, "provenance": provenance, "fit": fit}, text)
    return text.getvalue()


def _number(path: Path, key: str, value: Any) -> float:
    if key not in NUMBERS:
        hint = nearest(str(key), NUMBERS)
        raise ScenarioError(f"{path.name}: unknown key {key!r}{hint}; allowed: {', '.join(NUMBERS)}")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise ScenarioError(f"{path.name}: {key} = {value!r}, allowed are microseconds from 0 to 1e9")
    return float(value)
