"""What a shell completes: scenario files, models, GPUs and engines by name."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def scenario_files(incomplete: str) -> list[str]:
    """Return scenarios that ship, and folders and YAML files on the disk, that begin with `incomplete`."""
    from simserve.paths import data_dir

    ships = (f"scenarios/{path.name}" for path in data_dir("scenarios").glob("*.yaml"))
    return sorted({*_starting(ships, incomplete), *_on_disk(incomplete, (".yaml", ".yml"))})


def models(incomplete: str) -> list[str]:
    """Return the models that ship, and config.json files on the disk, that begin with `incomplete`."""
    from simserve.model import preset_names

    return [*_starting(preset_names(), incomplete), *_on_disk(incomplete, (".json",))]


def gpus(incomplete: str) -> list[str]:
    """Return the GPUs that begin with `incomplete`."""
    from simserve.hardware import gpu_names

    return _starting(gpu_names(), incomplete)


def engines(incomplete: str) -> list[str]:
    """Return the engine versions that begin with `incomplete`."""
    from simserve.engines.presets import PRESETS

    return _starting(PRESETS, incomplete)


def _starting(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _on_disk(incomplete: str, endings: tuple[str, ...]) -> list[str]:
    """Return folders, each with a slash, and files with one of the endings."""
    folder, slash, start = incomplete.rpartition("/")
    place = Path(folder + slash) if slash else Path()
    found = []
    for entry in sorted(place.iterdir()) if place.is_dir() else ():
        if entry.name.startswith(start) and (start or not entry.name.startswith(".")):
            name = f"{folder}{slash}{entry.name}"
            if entry.is_dir():
                found.append(f"{name}/")
            elif name.endswith(endings):
                found.append(name)
    return found
