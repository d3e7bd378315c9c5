"""Find a model by preset name, by Hugging Face name, or by the path of its `config.json`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from simserve.errors import ScenarioError, nearest
from simserve.model.readers import read_config
from simserve.model.spec import ModelSpec

_PRESETS = Path(__file__).with_name("presets")


def load_model(name_or_path: str) -> ModelSpec:
    """Return the model called so: a preset, a `config.json`, or a folder that holds one.

    Preset names ignore case, an owner before a slash, and a `-hf`, `-instruct`, `-chat` or `-it` at the end.
    Raises `ScenarioError` naming the nearest preset, or the field of the file that is wrong.
    """
    path = Path(name_or_path)
    if path.suffix == ".json" or path.is_dir():
        return _load_file(path / "config.json" if path.is_dir() else path)
    presets = _preset_names()
    for key in _spellings(name_or_path):
        if key in presets:
            return load_preset(presets[key])
    word = list(_spellings(name_or_path))[-1]
    begins = [name for name in sorted(presets) if name.startswith(word)]
    hint = nearest(begins[0] if begins else word, presets)
    raise ScenarioError(
        f"unknown model {name_or_path!r}{hint}; known: {', '.join(preset_names())}; "
        "or give the path of a config.json"
    )


def preset_names() -> list[str]:
    """Return the names of the presets, sorted."""
    return sorted(path.stem for path in _PRESETS.glob("*.json"))


@cache
def load_preset(name: str) -> ModelSpec:
    """Return the preset of exactly this name."""
    path = _PRESETS / f"{name}.json"
    fields = _parse(path)
    spec = read_config(fields, name, f"preset {name}")
    return _with_source(spec, str(fields.get("_source", spec.source)))


def _load_file(path: Path) -> ModelSpec:
    if not path.is_file():
        raise ScenarioError(f"model file {path} does not exist")
    name = path.parent.name if path.name == "config.json" and path.parent.name else path.stem
    return read_config(_parse(path), name, str(path))


def _parse(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_text(encoding="utf-8-sig"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path} is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ScenarioError(f"{path}: a model configuration is a JSON object, found {type(fields).__name__}")
    return fields


def _spellings(name: str) -> Iterator[str]:
    """The forms under which a name is looked up, the exact one first."""
    word = name.lower().rsplit("/", 1)[-1].replace("_", "-")
    yield word
    yield re.sub(r"(-(hf|instruct|chat|it|base))+$", "", word)


@cache
def _preset_names() -> dict[str, str]:
    """Preset by each of its spellings: file name and `_aliases`."""
    names: dict[str, str] = {}
    for stem in preset_names():
        names[stem] = stem
        for alias in _parse(_PRESETS / f"{stem}.json").get("_aliases", []):
            names[alias] = stem
    return names


def _with_source(spec: ModelSpec, source: str) -> ModelSpec:
    return ModelSpec(**{**vars(spec), "source": source})
