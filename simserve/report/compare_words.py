"""What a comparison answers, in one sentence: who meets the SLO, at what cost, what the variants change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from simserve.report.difference_words import Row, is_shown
from simserve.report.effect_words import NOTABLE, code, effects, listed, spread
from simserve.report.format import money, number, percent

MAX_WORDS = 25
"""Words of the sentence; what comes later and does not fit is left to the table."""

MAX_NAMES = 2
"""Runs named together; more are only counted."""


_COST = "cost_per_million_output_tokens"


def comparison_headline(
    table: dict[str, Any],
    words: Mapping[str, str] | None = None,
    currency: str = "$",
    *,
    kept: Mapping[str, float | None] | None = None,
    closed: bool = False,
) -> Markup:
    """Return the sentence for a comparison (the content of compare.json).

    `words` holds the verdict of each run that has an SLO (met, missed or inconclusive), `kept` the share of
    requests within it. In a `closed` loop, where answers set the pace, throughput is what runs differ by. The
    settings that differ stand below the sentence.
    """
    words = words or {}
    names = [table["base"], *table["variants"]]
    steady = [name for name in names if table["verdicts"][name]["stability"] != "unstable"]
    met = [name for name in names if words.get(name) == "met"]
    rows = {row["key"]: row for row in table["measures"]}
    parts = [*_slo(kept or {}, words, met, len(names)), *_partial(table, names), *_unsteady(names, steady)]
    if met or not words:
        parts += _cost(table, rows, met or steady, currency)
    able = [name for name in (met or names if words else names) if name in steady]
    return _within(parts, effects(table, rows, steady, able, closed=closed, alone=not parts))


def _within(parts: list[Markup], figures: list[Markup]) -> Markup:
    """Return the parts as one sentence that has no more words than it may have."""
    if not parts and not figures:
        return Markup("No two runs carry the same load.")
    text = Markup("")
    for part in (*parts, *figures):
        longer = text + Markup("; ") + part if text else part
        if not text or len(longer.striptags().split()) <= MAX_WORDS:
            text = longer
    return text[:1].upper() + text[1:] + "."


def _slo(
    kept: Mapping[str, float | None], words: Mapping[str, str], met: list[str], runs: int
) -> list[Markup]:
    """Return who meets the SLO; where nobody does, who comes nearest."""
    if not words:
        return []
    missed = [name for name, word in words.items() if word == "missed"]
    if len(met) == runs:
        return [Markup("both runs meet the SLO" if runs == 2 else "every run meets the SLO")]
    if met:
        text = _who(met, runs, "meets the SLO", "meet the SLO")
        return [text + Markup(", ") + _who(missed, runs, "misses it", "miss it") if missed else text]
    if len(missed) == runs:
        start = Markup("both runs miss the SLO" if runs == 2 else "every run misses the SLO")
    else:
        start = Markup("no run is shown to meet the SLO")
    shares = {name: share for name, share in kept.items() if share is not None}
    if not shares:
        return [start]
    nearest, farthest = (pick(shares, key=lambda name: shares[name]) for pick in (max, min))
    text = start + Markup(": {} keeps {} within it").format(code(nearest), percent(shares[nearest]))
    if percent(shares[farthest]) == percent(shares[nearest]):
        return [text]
    return [text + Markup(", {} {}").format(code(farthest), percent(shares[farthest]))]


def _who(names: Sequence[str], runs: int, one: str, several: str) -> Markup:
    """Return runs with what they do: `<a> meets it`, `<a> and <b> meet it`, `3 of 7 runs meet it`."""
    if len(names) > MAX_NAMES:
        return Markup("{} of {} runs {}").format(len(names), runs, several)
    return Markup("{} {}").format(listed([code(name) for name in names]), one if len(names) == 1 else several)


def _partial(table: dict[str, Any], names: list[str]) -> list[Markup]:
    """Return which runs leave requests undone: it must be said before any latency is believed."""
    partial = [n for n in names if table["verdicts"][n]["completed"] < table["verdicts"][n]["requests"]]
    if len(partial) == 1:
        verdict = table["verdicts"][partial[0]]
        counts = (number(verdict["completed"]), number(verdict["requests"]))
        return [Markup("{} completes {} of {} requests").format(code(partial[0]), *counts)]
    some = "do not complete all requests"
    return [_who(partial, len(names), some, some)] if partial else []


def _unsteady(names: list[str], steady: list[str]) -> list[Markup]:
    """Return which runs do not carry the load."""
    unsteady = [name for name in names if name not in steady]
    if not unsteady:
        return []
    if not steady:
        return [Markup("every run falls behind the arrivals (unstable)")]
    behind = "behind the arrivals (unstable)"
    return [_who(unsteady, len(names), f"falls {behind}", f"fall {behind}")]


def _cost(table: dict[str, Any], rows: dict[str, Row], able: list[str], currency: str) -> list[Markup]:
    """Return which of the runs that meet the SLO costs least, if they have prices."""
    row = rows.get(_COST)
    values = {name: row["values"][name] for name in able if row["values"][name] is not None} if row else {}
    if row is None or not values:
        return []
    best = _cheapest(table, row | {"values": values}) if len(values) > 1 else next(iter(values))
    if best is None:
        return []
    price = money(values[best], currency)
    tied = [name for name, value in values.items() if money(value, currency) == price]
    verbs = ("costs", "cost") if len(values) == 1 else ("costs least,", "cost least,")
    text = _who(tied, len(table["variants"]) + 1, *verbs)
    return [text + f" {price} per million output tokens"]


def _cheapest(table: dict[str, Any], row: Row) -> str | None:
    """Return the run that costs least: the base unless a variant costs notably less; None if all tie."""
    values = {name: value for name, value in row["values"].items() if value is not None}
    if len(values) < 2 or spread(values.values()) < NOTABLE:
        return None
    best, base = min(values, key=lambda name: values[name]), table["base"]
    if base not in values or best == base:
        return best
    notable = spread((values[base], values[best])) >= NOTABLE
    return best if notable and is_shown(row["differences"][best]) else base
