"""Published figures beside the same figures of a simulation: how far apart, and why.

A scenario lists them (`published:`), the manifest keeps the list, and tables are made from stored runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simserve.metrics.measures import AGAINST_MEASURED, MEASURES, Measure, figures_of, value_at

CAPACITY = "capacity"
"""Highest rate of the runs that keep up with the arrivals and whose p99 latencies meet the SLO."""
MEASURABLE: dict[str, Measure] = {
    measure.key: measure
    for measure in (
        Measure(CAPACITY, "capacity, requests/s", "number", "higher"),
        *AGAINST_MEASURED,
        *MEASURES,
    )
}
"""What a published figure may be about, by key."""


def published_rows(runs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the published figures of stored runs (the first is the base), each with ours and the ratio.

    Figures about runs that are not among them are left out. `ours` is None where a run does not show the
    figure (nothing completed, no run within the SLO).
    """
    base, *_ = runs
    listed = runs[base].manifest.get("published") or []
    wanted = [one for one in listed if {*_names(one.get("of")), *_names(one.get("over"))} <= runs.keys()]
    figures = {name: figures_of(run.summary, run.manifest) for name, run in runs.items()}
    return [_row(one, figures, base) for one in wanted]


def _row(wanted: dict[str, Any], figures: dict[str, dict[str, Any]], base: str) -> dict[str, Any]:
    measure = MEASURABLE[wanted["measure"]]
    ours = _best(measure, _names(wanted.get("of") or base), figures)
    if "over" in wanted:
        reference = _best(measure, _names(wanted["over"]), figures)
        ours = ours / reference if ours is not None and reference else None
    return {
        "figure": wanted["figure"],
        "source": wanted["source"],
        "differs": wanted.get("differs"),
        "unit": "ratio" if "over" in wanted else measure.unit,
        "published": wanted["value"],
        "ours": ours,
        "ratio": None if ours is None else ours / wanted["value"],
    }


def _names(of: str | Sequence[str] | None) -> Sequence[str]:
    return () if of is None else (of,) if isinstance(of, str) else of


def _best(measure: Measure, names: Sequence[str], figures: dict[str, dict[str, Any]]) -> float | None:
    """Return the best value among runs: lowest where lower is better, else the highest."""
    values = [_value(measure.key, figures[name]) for name in names]
    present = [value for value in values if value is not None]
    pick = min if measure.better == "lower" else max
    return pick(present, default=None)


def _value(key: str, figures: dict[str, Any]) -> float | None:
    if key != CAPACITY:
        return value_at(figures, key)
    whole = figures["whole"]
    limits = (whole["slo"] or {}).get("limits", {})
    tails = {name: whole[name]["p99"] for name in limits}
    met = all(tail is not None and tail <= limits[name] for name, tail in tails.items())
    kept_up = figures["stability"]["verdict"] != "unstable" and figures["counts"]["completed"]
    return figures["rates"]["requests_per_s"] if kept_up and met else None
