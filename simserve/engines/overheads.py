"""Constants of engines by name, and those of files that depart from them.

`simserve calibrate` writes such a file, and a scenario cites it as `engine.overhead: file.yaml`.
"""

from __future__ import annotations

from dataclasses import fields, replace
from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from simserve.engines.presets import ENGINES
from simserve.errors import ScenarioError, nearest
from simserve.latency.overhead import IDEAL, EngineOverhead

OVERHEADS = {"ideal": IDEAL} | {name: it.overhead for name, it in ENGINES.items() if it.overhead is not None}
_UP_TO = ", graphs up to "


def overhead_named(name: str) -> EngineOverhead:
    """Return the overhead constants called `name`; raises `ScenarioError` if there are none.

    Beside those of `OVERHEADS`, the names that `with_graphs` gives.
    """
    known, up_to, largest = name.partition(_UP_TO)
    if known not in OVERHEADS:
        names = ", ".join(sorted(OVERHEADS))
        raise ScenarioError(f"unknown engine overhead {name!r}{nearest(name, OVERHEADS)}; known: {names}")
    if not up_to:
        return OVERHEADS[known]
    if not largest.isdecimal() or not int(largest) or not OVERHEADS[known].capture_sizes:
        raise ScenarioError(f"engine overhead {name!r}: graphs go up to 1 or more sequences, and need graphs")
    return with_graphs(OVERHEADS[known], int(largest))


def with_graphs(overhead: EngineOverhead, largest: int) -> EngineOverhead:
    """Return the constants with CUDA graphs up to `largest` sequences, and of it; their name says so."""
    sizes = (*(size for size in overhead.capture_sizes if size < largest), largest)
    return replace(overhead, name=f"{overhead.name}{_UP_TO}{largest}", capture_sizes=sizes)


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
    return replace(base, name=path.name, built_in=False, provenance=provenance, **values)


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
        raise ScenarioError(f"{path.name}: {key} = {value!r}, allowed: microseconds from 0 to 1e9")
    return float(value)
