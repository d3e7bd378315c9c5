"""The results of a point from its replications: means with intervals, and the verdict on the targets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from simserve.deploy.build import slo_of
from simserve.errors import ScenarioError
from simserve.metrics.distribution import mean_interval
from simserve.metrics.slo_verdict import INCONCLUSIVE, judge_slo
from simserve.metrics.stability import NOT_JUDGED, STABLE, TOO_SHORT, UNSTABLE
from simserve.metrics.targets import Target, targets_of
from simserve.scenario.load import LoadedScenario
from simserve.scenario.study_spec import SweepSpec
from simserve.study.campaign import Campaign, facts_of
from simserve.study.files import Row, columns, evidence_of
from simserve.study.long_enough import run_long_enough
from simserve.study.plan import Point, plan_sweep

# By how much a deployment misses its targets, or which of them would break first, in words.

_WORDS = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "itl_ms": "ITL", "e2e_ms": "E2E"}
_STORED = (50, 90, 95, 99)


def first_to_break(means: dict[str, Any], targets: Sequence[Target]) -> str:
    """Return the limit that is used up most, at the stored percentile next to the target's share."""
    found = []
    for target in targets:
        percentile = next((p for p in _STORED if p >= 100 * target.share), _STORED[-1])
        for key, limit in target.limits:
            value = means.get(f"{key}.p{percentile}")
            if value is not None:
                used = f"{value / limit * 100:.0f} % of its limit"
                words = f"{_WORDS[key]}: p{percentile} is {value:,.4g} ms, {used}"
                found.append((value / limit, words))
    return max(found)[1] if found else "nothing was measured"


def shortfall_words(point: dict[str, Any], stopped: str) -> str:
    """Return by how much a deployment misses."""
    if stopped:
        return stopped
    if point["stability"] == "unstable":
        return "it falls behind the arrivals"
    worst = min(point["targets"], key=lambda target: (target["low"] or 0) - target["share"])
    estimate, low = worst["estimate"] or 0, worst["low"] or 0
    if estimate >= worst["share"]:
        return (
            f"{worst['words']}: {_percent(estimate)}, but only {_percent(low)} are shown; "
            "more requests or replications may show it"
        )
    return f"{worst['words']}: {_percent(estimate)}, {(worst['share'] - estimate) * 100:.2g} points short"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share * 100:.3g} %"


def summarised(rows: Sequence[Row], targets: Sequence[Target], confidence: float) -> dict[str, Any]:
    """Return the means of a point's rows by column, intervals where there are several, and its verdict."""
    rows = distinct(rows)
    means: dict[str, float | None] = {}
    intervals: dict[str, list[float]] = {}
    for name in columns():
        values = [row[name] for row in rows if row[name] is not None]
        if len(values) < len(rows):
            means[name] = None
            continue
        found = mean_interval(values, confidence)
        means[name] = values[0] if len(set(values)) == 1 else found.estimate
        if found.low is not None and found.high is not None:
            intervals[name] = [found.low, found.high]
    return {
        "means": means,
        "intervals": intervals,
        "replications": len(rows),
        "stability": _worst([row["stability"] for row in rows]),
        "limited_by": rows[0]["limited_by"],
        "warnings": rows[0]["warnings"],
        "needed_requests": max((row.get("needed_requests") or 0 for row in rows), default=0) or None,
        **verdict(rows, targets, confidence),
    }


def verdict(rows: Sequence[Row], targets: Sequence[Target], confidence: float) -> dict[str, Any]:
    """Return how a point does against each target, and `slo`: met, missed, inconclusive, too short, or none.

    Too short is the inconclusive that a longer run resolves: it cannot tell whether the load is carried.
    """
    rows = distinct(rows)
    found = judge_slo(targets, [evidence_of(row) for row in rows], confidence)
    if found is None:
        return {"slo": "none", "targets": []}
    short = any(row.get("needed_requests") is not None for row in rows)
    return {
        "slo": TOO_SHORT if short and found.outcome == INCONCLUSIVE else found.outcome,
        "targets": [
            {
                "name": check.name,
                "words": check.asked,
                "share": check.target,
                "estimate": check.kept,
                "low": check.low,
                "high": check.high,
            }
            for check in found.checks
        ],
    }


def distinct(rows: Sequence[Row]) -> Sequence[Row]:
    """Return the rows; only the first if all are equal, as where nothing depends on the seed."""
    return rows if any(row != rows[0] for row in rows[1:]) else rows[:1]


def _worst(verdicts: Sequence[str]) -> str:
    return next((word for word in (UNSTABLE, TOO_SHORT, NOT_JUDGED) if word in verdicts), STABLE)


# A sweep: every point of a plan, each with the same seeds, so that points differ by their settings alone.

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
