"""Find a model by preset name, by Hugging Face name, or by the path of its `config.json`."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from simserve.errors import ScenarioError
from simserve.model.names import Catalogue, Release
from simserve.model.readers import read_config
from simserve.model.spec import ModelSpec

_PRESETS = Path(__file__).with_name("presets")


def load_model(name_or_path: str) -> ModelSpec:
    """Return the model called so: a preset, a `config.json`, or a folder that holds one.

    Published names are understood with or without their owner (see `names`); those of quantised releases
    give the preset in the types of that release. Raises `ScenarioError` naming the nearest preset, or the
    field of the file that is wrong.
    """
    path = Path(name_or_path)
    if path.suffix == ".json" or path.is_dir():
        return _load_file(path / "config.json" if path.is_dir() else path)
    return _load_release(published(name_or_path))


def published(name: str) -> Release:
    """Return which preset a name means, and how the release of that name is quantised.

    Raises `ScenarioError` as `load_model` does.
    """
    return _catalogue().find(name)


def preset_names() -> list[str]:
    """Return the names of the presets, sorted."""
    return sorted(path.stem for path in _PRESETS.glob("*.json"))


def other_names(preset: str) -> list[str]:
    """Return the listed names of a preset's releases besides its own, sorted."""
    names = _catalogue().names.items()
    return sorted(name for name, release in names if release.preset == preset and name != preset)


def _load_release(release: Release) -> ModelSpec:
    fields = {**_preset_fields(release.preset), **release.changes}
    spec = read_config(fields, release.preset, f"preset {release.preset}")
    return replace(spec, source=str(fields.get("_source", spec.source)))


@cache
def _preset_fields(name: str) -> dict[str, Any]:
    return _parse(_PRESETS / f"{name}.json")


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


@cache
def _catalogue() -> Catalogue:
    """Return the names of every preset: its own, `_aliases`, and `_releases` with the fields that differ."""
    names: dict[str, Release] = {}
    owners: dict[str, str] = {}
    kept: dict[str, list[str]] = {}
    for stem in preset_names():
        fields = _preset_fields(stem)
        owners[stem] = str(fields.get("_owner", "")).lower()
        kept[stem] = fields.get("_nvfp4_keeps", [])
        names |= {alias: Release(stem) for alias in (stem, *fields.get("_aliases", ()))}
        names |= {name.lower(): Release(stem, own) for name, own in fields.get("_releases", {}).items()}
    return Catalogue(names, owners, kept)
