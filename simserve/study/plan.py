"""From a `sweep:` block to points: the grid, the list or the draw, less what conditions drop.

A point is a set of values by path. What is wrong with every point (an unknown path, a wrong kind of value) is
the user's mistake and refused at once; a point that a condition or the memory rules out is kept with the
reason.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from simserve.errors import ScenarioError, nearest
from simserve.scenario.load import LoadedScenario, changed
from simserve.scenario.study_spec import ConstraintSpec, Span, SweepSpec

# Conditions on points, such as `pools.0.tp * pools.0.replicas <= 8`: arithmetic on values of a scenario.
#
# Paths are written as in --set or with brackets. Only comparisons, arithmetic, and/or/not, numbers, words,
# lists and min/max are allowed, so a scenario file cannot run code.

Lookup = Callable[[str], Any]
"""Value at a dotted path."""

_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARE: dict[type, Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
_CALLS = {"min": min, "max": max, "abs": abs}
ALLOWED = "comparisons, + - * / // %, and, or, not, in, numbers, words in quotes, lists, min, max and paths"


class Condition:
    """One parsed condition."""

    def __init__(self, text: str) -> None:
        """Raises `ScenarioError` for what is not such an expression."""
        self.text = text
        try:
            self._tree = ast.parse(re.sub(r"(?<=[A-Za-z_\]])\.(\d+)", r"[\1]", text), mode="eval").body
        except (SyntaxError, ValueError, RecursionError) as error:
            raise ScenarioError(f"{text!r} is not a condition; allowed: {ALLOWED}") from error
        self.paths: list[str] = []
        self._check(self._tree)

    def holds(self, value_at: Lookup) -> bool:
        """Return whether the condition is true; raises `ScenarioError` if it cannot be evaluated."""
        try:
            return bool(self._value(self._tree, value_at))
        except (TypeError, ZeroDivisionError, ValueError) as error:
            raise ScenarioError(f"{self.text!r} cannot be evaluated: {error}") from error

    def _check(self, node: ast.AST) -> None:
        path = _path(node)
        if path is not None:
            self.paths.append(path)
            return
        allowed = (
            ast.BoolOp,
            ast.UnaryOp,
            ast.BinOp,
            ast.Compare,
            ast.Constant,
            ast.List,
            ast.Tuple,
            ast.Call,
        )
        known_call = isinstance(node, ast.Call) and _name(node.func) in _CALLS and not node.keywords
        power = isinstance(node, ast.BinOp) and type(node.op) not in _BINARY
        identity = isinstance(node, ast.Compare) and any(type(op) not in _COMPARE for op in node.ops)
        if (
            not isinstance(node, allowed)
            or (isinstance(node, ast.Call) and not known_call)
            or power
            or identity
        ):
            raise ScenarioError(f"{self.text!r}: {ast.unparse(node)!r} is not allowed; allowed: {ALLOWED}")
        for child in node.args if isinstance(node, ast.Call) else ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self._check(child)

    def _value(self, node: ast.AST, value_at: Lookup) -> Any:
        path = _path(node)
        if path is not None:
            return value_at(path)
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.List | ast.Tuple):
            return [self._value(item, value_at) for item in node.elts]
        if isinstance(node, ast.BoolOp):
            values = (self._value(item, value_at) for item in node.values)
            return all(values) if isinstance(node.op, ast.And) else any(values)
        if isinstance(node, ast.UnaryOp):
            value = self._value(node.operand, value_at)
            return not value if isinstance(node.op, ast.Not) else -value
        if isinstance(node, ast.BinOp):
            return _BINARY[type(node.op)](self._value(node.left, value_at), self._value(node.right, value_at))
        if isinstance(node, ast.Call):
            return _CALLS[_name(node.func)](*(self._value(item, value_at) for item in node.args))
        assert isinstance(node, ast.Compare)
        left = self._value(node.left, value_at)
        for op, item in zip(node.ops, node.comparators, strict=True):
            right = self._value(item, value_at)
            if not _COMPARE[type(op)](left, right):
                return False
            left = right
        return True


def _name(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _path(node: ast.AST) -> str | None:
    """Return the dotted path that names, attributes and indices write; None for anything else."""
    if isinstance(node, ast.Name):
        return None if node.id in ("True", "False", "None") else node.id
    if isinstance(node, ast.Attribute):
        base = _path(node.value)
        return None if base is None else f"{base}.{node.attr}"
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        base = _path(node.value)
        return None if base is None else f"{base}.{node.slice.value}"
    return None


MAX_POINTS = 1_000_000
Settings = dict[str, Any]


@dataclass(frozen=True)
class Point:
    """One set of values by path; `reason` says why it is not run, if it is not."""

    index: int
    settings: Settings
    reason: str = ""


def plan_sweep(it: LoadedScenario, spec: SweepSpec) -> list[Point]:
    """Return the points of a sweep in a fixed order; raises `ScenarioError` if none can be run."""
    if spec.points is not None:
        settings = [dict(point) for point in spec.points]
    elif spec.random is not None:
        settings = draw(spec.over or {}, spec.random, it.scenario.seed)
    else:
        settings = grid(spec.over or {})
    return constrained(it, settings, spec.where, "sweep")


def constrained(
    it: LoadedScenario, settings: Sequence[Settings], where: Sequence[ConstraintSpec], block: str
) -> list[Point]:
    """Return all points, those that a condition drops with its reason; equal ones once."""
    conditions = [(_condition(it, spec, block, i), spec.because) for i, spec in enumerate(where)]
    unique = list({repr(sorted(one.items())): one for one in settings}.values())
    points = []
    for i, one in enumerate(unique):
        scenario = changed(it, one)  # refuses unknown paths and wrong values, naming them
        points.append(Point(i, one, _dropped(conditions, scenario, it, block)))
    if all(point.reason for point in points):
        reasons = list(dict.fromkeys(point.reason for point in points))
        place = it.document.where((block, "where"))
        raise ScenarioError(f"no point is left of {len(points):,}: {'; '.join(reasons[:5])}", place=place)
    return points


def _condition(it: LoadedScenario, spec: ConstraintSpec, block: str, i: int) -> Condition:
    with it.blame(block, "where", i, "keep"):
        return Condition(spec.keep)


def _dropped(
    conditions: list[tuple[Condition, str]], scenario: LoadedScenario, it: LoadedScenario, block: str
) -> str:
    if not conditions:
        return ""
    values = scenario.scenario.model_dump(mode="json")
    for i, (condition, because) in enumerate(conditions):
        with it.blame(block, "where", i, "keep"):
            if not condition.holds(lambda path: value_at(values, path)):
                return because
    return ""


def value_at(values: Mapping[str, Any], path: str) -> Any:
    """Return the value at a dotted path of a scenario, defaults included; options of engines count too."""
    node: Any = values
    for part in path.split("."):
        if isinstance(node, list):
            if not part.isdigit() or int(part) >= len(node):
                raise ScenarioError(f"{path}: no entry {part} in a list of {len(node)}")
            node = node[int(part)]
            continue
        if not isinstance(node, dict):
            raise ScenarioError(f"{path}: unknown path, {part!r} has nothing to stand in")
        options = node.get("options") or {}
        known = [*node, *options]
        if part not in known:
            raise ScenarioError(
                f"{path}: unknown path, no {part!r}{nearest(part, known)}; allowed: {_some(known)}"
            )
        node = options[part] if part in options else node[part]
    return node


def _some(names: list[str]) -> str:
    return ", ".join(sorted(names))


def grid(over: Mapping[str, Sequence[Any] | Span]) -> list[Settings]:
    """Return every combination of the values, the last path changing fastest."""
    columns = [listed(path, values) for path, values in over.items()]
    size = math.prod(len(column) for column in columns)
    if size > MAX_POINTS:
        raise ScenarioError(f"sweep.over: {size:,} points, allowed: {MAX_POINTS:,}; use random")
    return [dict(zip(over, combination, strict=True)) for combination in product(*columns)]


def listed(path: str, values: Sequence[Any] | Span) -> list[Any]:
    """Return the values that a grid takes."""
    if not isinstance(values, Span):
        return list(values)
    if values.steps is None:
        if not values.whole or values.log:
            raise ScenarioError(
                f"sweep.over.{path}: a grid needs `steps` between {values.low:g} and {values.high:g}"
            )
        return list(range(int(values.low), int(values.high) + 1))
    space = np.geomspace if values.log else np.linspace
    numbers = space(values.low, values.high, values.steps).tolist()
    if not values.whole:
        return [float(f"{n:.6g}") for n in numbers]
    whole = list(dict.fromkeys(round(n) for n in numbers))
    if len(whole) < values.steps and not values.log:
        raise ScenarioError(
            f"sweep.over.{path}: {len(whole)} whole numbers from {values.low} to {values.high}, not "
            f"{values.steps}; for fractions write {values.low}.0"
        )
    return whole


def draw(over: Mapping[str, Sequence[Any] | Span], n: int, seed: int) -> list[Settings]:
    """Return n draws from the values, the same for the same seed."""
    rng = np.random.default_rng([seed, 0x53574550])
    return [{path: _drawn(values, rng) for path, values in over.items()} for _ in range(n)]


def _drawn(values: Sequence[Any] | Span, rng: np.random.Generator) -> Any:
    if not isinstance(values, Span):
        return values[int(rng.integers(len(values)))]
    low, high = values.low, values.high
    if values.whole and not values.log:
        return int(rng.integers(int(low), int(high) + 1))
    found = math.exp(rng.uniform(math.log(low), math.log(high))) if values.log else rng.uniform(low, high)
    return round(found) if values.whole else float(f"{found:.6g}")
