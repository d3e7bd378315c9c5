"""The points that a study recommends, each as a scenario file that `simserve run` takes.

A file holds the study's scenario with the point's values and without the studies. Files that the scenario
names by relative paths keep being found: their names start from the result folder.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from simserve.scenario.files import find, shipped
from simserve.scenario.load import LoadedScenario, changed
from simserve.study.files import write_text

BEST = "best.yaml"
NAMES = re.compile(r"best\.yaml|point-\d+\.yaml")
"""Names of the files that studies write."""
MOST_COMMANDS = 3

Row = dict[str, Any]
Plain = dict[str, Any]


def write_recommended(it: LoadedScenario, folder: Path, study: dict[str, Any]) -> None:
    """Write a file for each recommended row of a study, and its name to the row as `file`.

    Of a size these are all deployments that meet the SLO, the cheapest first; of a capacity the highest load
    that is shown to be carried; of a search the points that no other beats. Files of an earlier study go.
    """
    for entry in sorted(folder.iterdir()):
        if NAMES.fullmatch(entry.name):
            entry.unlink()
    for name, row, changes in _recommended(study):
        row["file"] = name
        plain = _from_folder(changed(it, changes).document.data, it.folder, folder)
        write_text(folder / name, f"# Recommended by: {study['command']}\n{_yaml(plain)}")


def run_commands(study: dict[str, Any], folder: Path) -> list[str]:
    """Return the lines that say how to simulate what a study recommends."""
    names = [name for name, _, _ in _recommended(study)]
    lines = [f"Run it: {shlex.join(['simserve', 'run', str(folder / name)])}" for name in names]
    more = len(lines) - MOST_COMMANDS
    return lines[:MOST_COMMANDS] + ([f"Run it: {more:,} more files in {folder}"] if more > 0 else [])


def _recommended(study: dict[str, Any]) -> list[tuple[str, Row, Mapping[str, Any]]]:
    """Return the file, the row and the changed values by path of each recommended point."""
    if study["kind"] == "size":
        return [
            (f"point-{i}.yaml" if i > 1 else BEST, row, {"pools": row["pools"], **row["keys"]})
            for i, row in enumerate(study["feasible"], 1)
        ]
    if study["kind"] == "capacity":
        low = study["capacity"]["low"]
        met = [row for row in study["points"] if low is not None and row["load"] <= low]
        return [(BEST, row, row["settings"]) for row in met[-1:]]
    by_number = {row["point"]: row for row in study["points"]}
    rows = [by_number[number] for number in study["front"]]
    return [(f"point-{row['point']}.yaml", row, {**row["settings"], **row["prices"]}) for row in rows]


def _yaml(plain: Plain) -> str:
    yaml = YAML()
    yaml.width = 110
    yaml.indent(mapping=2, sequence=4, offset=2)
    text = StringIO()
    yaml.dump(plain, text)
    return text.getvalue()


def _from_folder(plain: Plain, base: Path, folder: Path) -> Plain:
    """Return a scenario of `base` with names of files that are found from `folder`."""

    def renamed(mapping: Any, *keys: str) -> Any:
        if not isinstance(mapping, dict):
            return mapping
        named = {key: _name(mapping[key], base, folder) for key in keys if isinstance(mapping.get(key), str)}
        return {**mapping, **named}

    plain = {**plain, "workload": renamed(plain["workload"], "trace"), **_renamed_model(plain, base, folder)}
    plain["engine"] = renamed(plain["engine"], "overhead")
    if "profiles" in plain:
        plain["profiles"] = [_name(name, base, folder) for name in plain["profiles"]]
    plain["pools"] = [
        {key: renamed(value, *_FILES_OF_A_POOL.get(key, ())) for key, value in pool.items()}
        for pool in plain["pools"]
    ]
    return plain


_FILES_OF_A_POOL = {"engine": ("overhead",), "expert_load": ("path",), "speculation": ("model",)}


def _renamed_model(plain: Plain, base: Path, folder: Path) -> Plain:
    """Return the model's new name if it is that of a file or folder, not of a preset."""
    name = plain["model"]
    path = find(name, base)
    is_path = path is not None and (path.is_dir() or name.endswith(".json"))
    return {"model": _name(name, base, folder)} if is_path else {}


def _name(name: str, base: Path, folder: Path) -> str:
    """Return `name` as it is if it is absolute, ships or names no file, else relative to `folder`."""
    path, ours = find(name, base), shipped(name)
    if path is None or Path(name).is_absolute() or (ours is not None and path.resolve() == ours.resolve()):
        return name
    return Path(os.path.relpath(path.resolve(), folder.resolve())).as_posix()
