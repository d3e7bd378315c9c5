"""A sweep: every point of a plan, each with the same seeds, so that points differ by their settings alone."""

from __future__ import annotations

import re
from typing import Any

from simserve.errors import ScenarioError
from simserve.metrics.targets import targets_of
from simserve.scenario.build import slo_of
from simserve.scenario.load import LoadedScenario
from simserve.scenario.study_spec import SweepSpec
from simserve.study.campaign import Campaign
from simserve.study.facts import facts_of
from simserve.study.long_enough import run_long_enough
from simserve.study.plan import Point, plan_sweep
from simserve.study.points import summarised
from simserve.study.row import Row

Record = dict[str, Any]


def require_sweep(it: LoadedScenario) -> SweepSpec:
    """Return the sweep block of a scenario; raises `ScenarioError` if there is none."""
    if it.scenario.sweep is None:
        raise ScenarioError(
            f"{it.document.source}: has no sweep; add one, such as sweep: {{over: {{pools.0.tp: [1, 2]}}}}"
        )
    return it.scenario.sweep


def run_sweep(campaign: Campaign, spec: SweepSpec) -> tuple[dict[str, Any], list[Record], list[str]]:
    """Run a sweep; return what study.json holds, the records of all runs, and the paths that are varied.

    Raises `ScenarioError` if no point at all could be run.
    """
    it = campaign.it
    campaign.prices = spec.prices
    campaign.rank = _rank
    plan = plan_sweep(it, spec)
    todo = [point for point in plan if not point.reason]
    campaign.counts.pruned = len(plan) - len(todo)
    groups = run_long_enough(
        campaign, [point.settings for point in todo], spec.replications, spec.longest, lambda rows: False
    )
    records = [_dropped(point) for point in plan if point.reason]
    for point, group in zip(todo, groups, strict=True):
        records += [
            {
                "point": point.index,
                "replication": replication,
                "seed": it.scenario.seed + replication,
                "settings": point.settings,
                "status": "done" if outcome.row is not None else "impossible",
                "reason": outcome.reason,
                "row": outcome.row,
            }
            for replication, outcome in enumerate(group.outcomes)
        ]
    if all(record["row"] is None for record in records):
        raise ScenarioError("\n".join(_why_none(records)))
    paths = list(dict.fromkeys(path for point in plan for path in point.settings))
    return _study(it, spec, plan, records, paths), records, paths


def _why_none(records: list[Record]) -> list[str]:
    """Return lines that say why no point could be run; reasons that differ in numbers alone count as one."""
    first: dict[str, str] = {}
    for record in records:
        first.setdefault(re.sub(r"\d[\d.,]*", "#", record["reason"]), record["reason"])
    return [f"no point of the sweep can be run, {len(records):,} were tried:", *list(first.values())[:5]]


def _rank(row: Row) -> tuple[float, ...]:
    """Most requests within the SLO first, then the least cost, then the most tokens."""
    cost = row["cost_per_million_output_tokens"]
    return -(row["attainment"] or 0.0), cost or 0.0, -(row["output_tokens_per_s"] or 0.0)


def _dropped(point: Point) -> Record:
    return {
        "point": point.index,
        "replication": None,
        "seed": None,
        "settings": point.settings,
        "status": "dropped",
        "reason": point.reason,
        "row": None,
    }


def _study(
    it: LoadedScenario, spec: SweepSpec, plan: list[Point], records: list[Record], paths: list[str]
) -> dict[str, Any]:
    targets = targets_of(slo_of(it.scenario))
    by_point: dict[int, list[Record]] = {}
    for record in sorted(records, key=lambda r: (r["point"], r["replication"] or 0)):
        by_point.setdefault(record["point"], []).append(record)
    points = []
    for point in plan:
        found = by_point[point.index]
        rows = [record["row"] for record in found if record["row"] is not None]
        points.append(
            {
                "point": point.index,
                "settings": point.settings,
                "status": found[0]["status"],
                "reason": found[0]["reason"],
                **(summarised(rows, targets, spec.confidence) if rows else {}),
            }
        )
    return {
        "kind": "sweep",
        "schema": 1,
        **facts_of(it),
        "paths": paths,
        "replications": spec.replications,
        "confidence": spec.confidence,
        "targets": [target.words for target in targets],
        "points": points,
    }
