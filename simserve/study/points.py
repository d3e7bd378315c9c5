"""The results of a point from its replications: means with intervals, and the verdict on the targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simserve.metrics.stability import NOT_JUDGED, STABLE, TOO_SHORT, UNSTABLE
from simserve.metrics.statistics import mean_interval
from simserve.study.row import Row, columns
from simserve.study.targets import Target, judge


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
        "needed_requests": max((row.get("needed_requests") or 0 for row in rows), default=0) or None,
        **verdict(rows, targets, confidence),
    }


def verdict(rows: Sequence[Row], targets: Sequence[Target], confidence: float) -> dict[str, Any]:
    """Return how a point does against each target, and `slo`: met, missed, not shown, too short, or none.

    Met needs the lower bound of every target, and a load that is carried in every run.
    """
    rows = distinct(rows)
    judged = judge(targets, rows, confidence)
    unstable = any(row["stability"] == UNSTABLE for row in rows)
    if not targets:
        word = "none"
    elif unstable or any(one.missed for one in judged):
        word = "missed"
    elif any(row.get("needed_requests") is not None for row in rows):
        word = "too short"
    else:
        word = "met" if all(one.met for one in judged) else "not shown"
    return {
        "slo": word,
        "targets": [
            {
                "name": one.target.name,
                "words": one.target.words,
                "share": one.target.share,
                "estimate": one.interval.estimate if one.interval else None,
                "low": one.interval.low if one.interval else None,
                "high": one.interval.high if one.interval else None,
            }
            for one in judged
        ],
    }


def distinct(rows: Sequence[Row]) -> Sequence[Row]:
    """Return the rows; only the first if all are equal, as where nothing depends on the seed."""
    return rows if any(row != rows[0] for row in rows[1:]) else rows[:1]


def _worst(verdicts: Sequence[str]) -> str:
    return next((word for word in (UNSTABLE, TOO_SHORT, NOT_JUDGED) if word in verdicts), STABLE)
