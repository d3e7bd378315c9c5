"""What makes two runs the same run: scenario, trace, profiles, other files, and the version of the program.

The version is the release and the hash of the program's own source, so that a changed program never takes
what an older one left behind.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import simserve
from simserve import __version__
from simserve.paths import data_dir
from simserve.scenario.files import find
from simserve.scenario.load import LoadedScenario
from simserve.scenario.spec import Scenario


@cache
def code_version() -> str:
    """Return the release and a hash of the source."""
    digest = hashlib.sha256()
    root = Path(simserve.__file__).parent
    for path in sorted(root.rglob("*.py")):
        if "_data" not in path.parts:
            digest.update(path.relative_to(root).as_posix().encode())
            digest.update(path.read_bytes())
    return f"{__version__}+{digest.hexdigest()[:16]}"


def run_key(it: LoadedScenario) -> str:
    """Return the hash of everything that the result of a scenario depends on."""
    scenario = it.scenario
    plain = scenario.as_mapping()
    plain.pop("name")
    text = json.dumps(plain, sort_keys=True, default=str)
    parts = [code_version(), text, *_inputs(it)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _inputs(it: LoadedScenario) -> list[str]:
    """Return hashes of the files that the scenario names, and of its GPUs' profiles."""
    scenario = it.scenario
    found = [file_digest(str(path)) for path in (find(name, it.folder) for name in _files(scenario)) if path]
    folders = [find(name, it.folder) for name in scenario.profiles]
    roots = [folder for folder in folders if folder] + [data_dir("kernels_profile")]
    for gpu in sorted({pool.gpu for pool in scenario.pools}):
        found += [folder_digest(str(root / gpu)) for root in roots]
    return found


def _files(scenario: Scenario) -> list[str]:
    names: list[Any] = [scenario.workload.trace, scenario.model, scenario.engine.overhead]
    names += [pool.engine.overhead for pool in scenario.pools]
    return [name for name in names if name]


@cache
def file_digest(path: str) -> str:
    """Return the hash of a file (of all files, for a folder), read once per process."""
    if Path(path).is_dir():
        return folder_digest(path)
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


@cache
def folder_digest(path: str) -> str:
    """Return the hash of the files of a folder, read once per process; empty if there is none."""
    files = sorted(file for file in Path(path).glob("*") if file.is_file())
    parts = [f"{file.name} {hashlib.sha256(file.read_bytes()).hexdigest()}" for file in files]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest() if parts else ""
