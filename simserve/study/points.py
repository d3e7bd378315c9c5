"""The results of a point from its replications: means with intervals, and the verdict on the targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simserve.metrics.slo_verdict import INCONCLUSIVE, judge_slo
from simserve.metrics.stability import NOT_JUDGED, STABLE, TOO_SHORT, UNSTABLE
from simserve.metrics.statistics import mean_interval
from simserve.metrics.targets import Target
from simserve.study.row import Row, columns, evidence_of


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
