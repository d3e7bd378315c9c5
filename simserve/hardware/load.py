"""Find a GPU's figures: `gpu.json` in its profile folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic import ValidationError

from simserve.errors import ScenarioError, nearest
from simserve.hardware.names import find_gpu, find_gpus
from simserve.hardware.spec import GpuSpec
from simserve.paths import data_dir


def load_gpu(name: str, extra_dirs: Iterable[Path | str] = ()) -> GpuSpec:
    """Return the GPU called `name`, from `<dir>/<name>/gpu.json`; other names of it are understood too.

    Folders in `extra_dirs` come first, then those that ship. Raises `ScenarioError` with the choices if
    several GPUs have that name, with the nearest one if none has, or naming the field that is wrong.
    """
    files = _files(extra_dirs)
    folder = name if name in files else gpu_called(name, extra_dirs)
    return _read(files[folder], folder)


def gpu_called(name: str, extra_dirs: Iterable[Path | str] = ()) -> str:
    """Return the folder name of the GPU that `name` means (`NVIDIA H200` -> `h200_sxm`).

    Raises `ScenarioError` as `load_gpu` does.
    """
    files = _files(extra_dirs)
    return name if name in files else find_gpu(name, _words_of(files))


def gpus_called(name: str, extra_dirs: Iterable[Path | str] = ()) -> list[str]:
    """Return the names of all GPUs that `name` may mean; none if it means nothing here."""
    return find_gpus(name, _words_of(_files(extra_dirs)))


def gpu_names(extra_dirs: Iterable[Path | str] = ()) -> list[str]:
    """Return the names of all GPUs that have a `gpu.json`, sorted."""
    return sorted(_files(extra_dirs))


def _files(extra_dirs: Iterable[Path | str]) -> dict[str, Path]:
    """Return the `gpu.json` of each GPU by its name; the folder that comes first wins."""
    dirs = [*(Path(folder) for folder in extra_dirs), data_dir("kernels_profile")]
    return {path.parent.name: path for folder in reversed(dirs) for path in folder.glob("*/gpu.json")}


def _words_of(files: Mapping[str, Path]) -> dict[str, tuple[str, ...]]:
    return {name: _read(path, name).words for name, path in files.items()}


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
