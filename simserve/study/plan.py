"""From a `sweep:` block to points: the grid, the list or the draw, less what conditions drop.

A point is a set of values by path. What is wrong with every point (an unknown path, a wrong kind of value) is
the user's mistake and refused at once; a point that a condition or the memory rules out is kept with the
reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from simserve.errors import ScenarioError, nearest
from simserve.scenario.load import LoadedScenario, changed
from simserve.scenario.study_spec import ConstraintSpec, Span, SweepSpec
from simserve.study.expressions import Condition

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
        raise ScenarioError(f"{place}: no point is left of {len(points):,}: {'; '.join(reasons[:5])}")
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
        raise ScenarioError(f"sweep.over: {size:,} points, allowed are {MAX_POINTS:,}; use random")
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
