"""Find a GPU's figures: `gpu.json` in its profile folder."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from simserve.errors import ScenarioError, nearest
from simserve.hardware.spec import GpuSpec
from simserve.paths import data_dir


def load_gpu(name: str, extra_dirs: Iterable[Path | str] = ()) -> GpuSpec:
    """Return the GPU called `name`, from `<dir>/<name>/gpu.json`.

    Folders in `extra_dirs` come first, then those that ship. Raises `ScenarioError` naming the nearest GPU,
    or the field of the file that is wrong.
    """
    dirs = _dirs(extra_dirs)
    for directory in dirs:
        path = directory / name / "gpu.json"
        if name and path.is_file():
            return _read(path, name)
    known = gpu_names(extra_dirs)
    begins = [it for it in known if name and it.startswith(name.lower())]
    hint = nearest(begins[0] if begins else name.lower(), known)
    raise ScenarioError(f"unknown GPU {name!r}{hint}; known: {', '.join(known)}")


def gpu_names(extra_dirs: Iterable[Path | str] = ()) -> list[str]:
    """Return the names of all GPUs that have a `gpu.json`, sorted."""
    return sorted({path.parent.name for folder in _dirs(extra_dirs) for path in folder.glob("*/gpu.json")})


def _dirs(extra_dirs: Iterable[Path | str]) -> list[Path]:
    return [*(Path(folder) for folder in extra_dirs), data_dir("kernels_profile")]


def _read(path: Path, name: str) -> GpuSpec:
    try:
        fields = json.loads(path.read_text(encoding="utf-8-sig"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ScenarioError(f"{path} is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ScenarioError(f"{path}: a GPU is a JSON object, found {type(fields).__name__}")
    try:
        return GpuSpec(**{**fields, "name": name})
    except ValidationError as error:
        raise ScenarioError(f"{path}: {_explain(error)}") from error


def _explain(error: ValidationError) -> str:
    first = error.errors()[0]
    place = ".".join(str(step) for step in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"unknown field {place!r}{nearest(place, GpuSpec.model_fields)}"
    if first["type"] == "missing":
        return f"field {place!r} is missing"
    return f"{place} = {first['input']!r}: {first['msg']}"
