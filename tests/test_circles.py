"""Modules of the package that import one another, whether they run or are only read by a type checker.

Those that stand in `KNOWN` are to be broken; no other may appear, and one that is broken leaves the list.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "simserve"
KNOWN = {
    "deploy.build, deploy.problems",
    "engines.vllm.running, engines.vllm.scheduler",
    "profiler.collectives, profiler.rank_work",
    "profiler.ops.attention_kernels, profiler.ops.paged",
    "sim.decode_batch, sim.step_times",
    "sim.disagg.cluster, sim.disagg.role_switch",
    "sim.pace.lockstep, sim.pace.rank",
    "sim.replica, sim.view",
}
LATE = {("scenario.load", "deploy.problems")}
"""Imports that happen in a function of purpose: mistakes are collected by what builds a scenario."""


def imports(root: Path) -> dict[str, set[str]]:
    """By module, without the package's name: the modules of the package that it imports anywhere."""
    paths = {".".join(path.relative_to(root).with_suffix("").parts): path for path in root.rglob("*.py")}
    names = {name.removesuffix(".__init__"): path for name, path in paths.items()}
    return {name: set(_imported(path, names)) - {name} for name, path in names.items()}


def _imported(path: Path, known: dict[str, Path]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{PACKAGE.name}."):
            module = str(node.module).removeprefix(f"{PACKAGE.name}.")
            for alias in node.names:
                yield f"{module}.{alias.name}" if f"{module}.{alias.name}" in known else module


def circles(graph: dict[str, set[str]]) -> set[str]:
    """Modules that reach one another, as sorted names."""
    reached: dict[str, set[str]] = {}
    for start in graph:
        seen, todo = set(), [start]
        while todo:
            new = graph.get(todo.pop(), set()) - seen
            seen |= new
            todo += new
        reached[start] = seen
    groups = {frozenset(b for b in reached[a] if a in reached.get(b, ())) for a in graph if a in reached[a]}
    return {", ".join(sorted(group)) for group in groups}


def test_no_module_joins_a_circle() -> None:
    graph = {
        name: {other for other in others if (name, other) not in LATE}
        for name, others in imports(PACKAGE).items()
    }
    assert circles(graph) == KNOWN


def test_a_planted_circle_is_seen() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}
    assert circles(graph) == {"a, b, c"}
