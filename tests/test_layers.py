"""A layer imports only from layers to its left, a heavy library has one home, and rooms stay small."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from simserve.engines.presets import PRESETS

PACKAGE = Path(__file__).parent.parent / "simserve"

BASE = {"core", "units", "errors", "registry", "paths", "arrow", "__init__"}
ORDER = [
    BASE,
    {"model", "hardware", "experts"},
    {"latency", "kvcache"},
    {"engines", "router"},
    {"sim"},
    {"scenario", "deploy"},
    {"study", "api"},
    {"cli", "__main__"},
]
SIDE = {
    "workload": BASE,
    "metrics": BASE,
    "report": BASE | {"metrics"},
}
"""Layers beside the line, and what they may know."""
FROM_SCENARIO_ON = set(SIDE)
"""What the wiring and the command line may know beside the layers to their left."""
TOOLS = {"profiler", "validation"}
"""Programs of their own that look at everything; nobody but the command line knows them."""

HOMES = {"simpy": {"sim"}, "plotly": {"report"}, "torch": {"profiler"}, "typer": {"cli"}}


def layer_of(path: Path, root: Path) -> str:
    return path.relative_to(root).parts[0].removesuffix(".py")


def allowed_for(layer: str) -> set[str]:
    if layer in SIDE:
        return SIDE[layer] | {layer}
    if layer in TOOLS:
        return {name for names in ORDER[:-1] for name in names} | set(SIDE) | {layer}
    rank = next(i for i, names in enumerate(ORDER) if layer in names)
    allowed = {name for names in ORDER[: rank + 1] for name in names}
    if rank >= ORDER.index({"scenario", "deploy"}):
        allowed |= FROM_SCENARIO_ON
    if "cli" in ORDER[rank]:
        allowed |= TOOLS
    return allowed


def imported_modules(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            if node.module == "simserve":
                yield from (f"simserve.{alias.name}" for alias in node.names if alias.name[0] != "_")


def violations(root: Path) -> list[str]:
    found = []
    for path in sorted(root.rglob("*.py")):
        layer = layer_of(path, root)
        for module in imported_modules(path.read_text(encoding="utf-8")):
            top, *rest = module.split(".")
            if top == "simserve" and rest and rest[0] not in allowed_for(layer):
                found.append(f"{path.relative_to(root)}: {layer} imports {module}")
            if top in HOMES and layer not in HOMES[top]:
                found.append(f"{path.relative_to(root)}: {module} belongs in {', '.join(HOMES[top])}")
    return found


def test_every_module_has_a_layer() -> None:
    known = {name for names in ORDER for name in names} | set(SIDE) | TOOLS
    assert {layer_of(path, PACKAGE) for path in PACKAGE.rglob("*.py")} <= known


def test_no_layer_looks_right() -> None:
    assert violations(PACKAGE) == []


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("engines/fault.py", "from simserve.sim import simulate"),
        ("core/fault.py", "from simserve.model.spec import ModelSpec"),
        ("latency/fault.py", "def late():\n    from simserve.engines.base import POLICIES"),
        ("metrics/fault.py", "from simserve.latency import PROVENANCE"),
        ("report/fault.py", "from simserve.deploy.build import build"),
        ("sim/fault.py", "from simserve import metrics"),
        ("engines/fault.py", "import simpy"),
        ("sim/fault.py", "import plotly.graph_objects as go"),
        ("latency/fault.py", "import torch"),
    ],
)
def test_a_planted_fault_is_caught(tmp_path: Path, file: str, line: str) -> None:
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    path.write_text(line)
    assert len(violations(tmp_path)) == 1


MOST_FILES, MOST_LINES = 20, 400
"""Files in a folder, and lines in a file."""


def test_folders_and_files_stay_small() -> None:
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    crowded = {str(folder): n for folder in folders if (n := len(list(folder.glob("*.py")))) > MOST_FILES}
    lines = {str(path): len(path.read_text(encoding="utf-8").splitlines()) for path in PACKAGE.rglob("*.py")}
    assert crowded == {}
    assert {path: n for path, n in lines.items() if n > MOST_LINES} == {}


# A release of an engine stands in the engine's folder, or in a docstring that says where something was read.
# Programs that read logs and tables of named releases are the exception.

READERS_OF_RELEASES = ("validation", "latency/importing")


def engine_versions() -> list[str]:
    """Every modelled release as it may be written: 0.33, 0.33.0."""
    names = {preset.name.partition("-")[2] for preset in PRESETS.values()}
    return sorted((names | {preset.release for preset in PRESETS.values()}) - {""})


def versions_named(root: Path) -> list[str]:
    """String constants outside docstrings that name a modelled release, with their place."""
    version = re.compile(rf"(?<![\d.])({'|'.join(map(re.escape, engine_versions()))})(\.\d+)?(?![\d.]*\d)")
    found = []
    for path in sorted(root.rglob("*.py")):
        place = path.relative_to(root).as_posix()
        if place.startswith(("engines/", *(f"{name}/" for name in READERS_OF_RELEASES))):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        found += [
            f"{place}:{node.lineno}: {node.value!r}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
            if id(node) not in docstrings and version.search(node.value)
        ]
    return found


def test_the_version_of_an_engine_stands_in_its_folder() -> None:
    assert {"0.15", "0.15.1", "0.19", "0.33", "0.5.23"} <= set(engine_versions())
    assert versions_named(PACKAGE) == []


@pytest.mark.parametrize(
    ("line", "caught"),
    [
        ('newest = params.version == "0.33"', True),
        ('PRESET = "vllm-0.19"', True),
        ('words = f"as in SGLang 0.5.23, {x}"', True),
        ('"""Read in vLLM 0.33.0."""', False),
        ("share = 0.15", False),
        ('path = "aiconfigurator-0.33.7.1"', False),
        ('price = "10.33"', False),
    ],
)
def test_a_planted_version_is_caught(tmp_path: Path, line: str, caught: bool) -> None:
    for file in ("deploy/fault.py", "engines/vllm/own.py"):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text(line)
    assert len(versions_named(tmp_path)) == caught
