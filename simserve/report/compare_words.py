"""What a comparison answers, in one sentence: who meets the SLO, at what cost, and how fast."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from simserve.report.difference_words import Row, difference_words, in_unit_words, is_shown
from simserve.report.format import money, number, percent

NOTABLE = 0.02
"""Relative differences below this are not worth a word in the sentence."""

MAX_WORDS = 25
"""Words of the sentence; what comes later and does not fit is left to the table."""

MAX_NAMES = 2
"""Runs named together; more are only counted."""


class _Effect(NamedTuple):
    key: str
    words: str
    best: str
    """'lowest' or 'highest'."""


_EFFECTS = (
    _Effect("whole.ttft_ms.p50", "median TTFT", "lowest"),
    _Effect("whole.itl_ms.p99", "p99 ITL", "lowest"),
    _Effect("whole.ttft_ms.p99", "p99 TTFT", "lowest"),
    _Effect("whole.tpot_ms.p50", "median TPOT", "lowest"),
    _Effect("rates.output_tokens_per_s", "output tokens/s", "highest"),
)

_COST = _Effect("cost_per_million_output_tokens", "cost per million output tokens", "lowest")

_Shares = list[tuple[_Effect, float]]


def comparison_headline(
    table: dict[str, Any], words: Mapping[str, str] | None = None, currency: str = "$"
) -> Markup:
    """Return the sentence for a comparison (the content of compare.json).

    `words` holds the verdict of each run that has an SLO: met, missed or inconclusive. The settings
    that differ stand in the list below the sentence.
    """
    words = words or {}
    names = [table["base"], *table["variants"]]
    steady = [name for name in names if table["verdicts"][name]["stability"] != "unstable"]
    met = [name for name in names if words.get(name) == "met"]
    rows = {row["key"]: row for row in table["measures"]}
    found = [(effect, rows[effect.key]) for effect in _EFFECTS if effect.key in rows]
    parts = [*_slo(rows, words, met, len(names)), *_partial(table, names), *_unsteady(names, steady)]
    if met or not words:
        parts += _cost(table, rows, met or steady, currency)
    return _within(parts, _figures(table, found, steady, alone=not parts))


def _within(parts: list[Markup], figures: list[Markup]) -> Markup:
    """Return the parts as one sentence that has no more words than it may have."""
    text = Markup("")
    for part in (*parts, *figures):
        longer = text + Markup("; ") + part if text else part
        if not text or len(longer.striptags().split()) <= MAX_WORDS:
            text = longer
    return text[:1].upper() + text[1:] + "."


def _slo(rows: dict[str, Row], words: Mapping[str, str], met: list[str], runs: int) -> list[Markup]:
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
    row = rows.get("steady.slo.attainment")
    shares = {name: v for name, v in row["values"].items() if v is not None} if row else {}
    if not shares:
        return [start]
    nearest = max(shares, key=lambda name: shares[name])
    tail = Markup(", the nearest is {} with {} within its limits")
    return [start + tail.format(code(nearest), percent(shares[nearest]))]


def _who(names: Sequence[str], runs: int, one: str, several: str) -> Markup:
    """Return runs with what they do: `<a> meets it`, `<a> and <b> meet it`, `3 of 7 runs meet it`."""
    if len(names) > MAX_NAMES:
        return Markup("{} of {} runs {}").format(len(names), runs, several)
    return Markup("{} {}").format(
        _listed([code(name) for name in names]), one if len(names) == 1 else several
    )


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
    row = rows.get(_COST.key)
    values = {name: row["values"][name] for name in able if row["values"][name] is not None} if row else {}
    if row is None or not values:
        return []
    best = _winner(table, _COST, row | {"values": values}) if len(values) > 1 else next(iter(values))
    if best is None:
        return []
    price = money(values[best], currency)
    tied = [name for name, value in values.items() if money(value, currency) == price]
    verbs = ("costs", "cost") if len(values) == 1 else ("costs least,", "cost least,")
    text = _who(tied, len(table["variants"]) + 1, *verbs)
    return [text + f" {price} per million output tokens"]


def _figures(
    table: dict[str, Any], found: list[tuple[_Effect, Row]], steady: list[str], *, alone: bool
) -> list[Markup]:
    """Return the effect that sets the runs apart most; `alone`, also what it costs."""
    base, variants = table["base"], table["variants"]
    if len(steady) < 2 or base not in steady:
        median = next((row for effect, row in found if effect.key == "whole.ttft_ms.p50"), None)
        if median is None or not steady:
            return []
        who = Markup("{} has").format(code(steady[0])) if len(steady) == 1 else Markup("the others have")
        return [who + Markup(" a median TTFT of {}").format(_range(median, steady))]
    if len(variants) == 1:
        return [_one(table, variants[0], found, alone=alone)]
    ranked = sorted(found, key=lambda pair: -_ratio(pair[1], steady))
    for effect, row in ranked:
        winner = _winner(table, effect, row)
        if winner is not None:
            return [_best(table, found, effect, row, winner, alone=alone)]
    return [Markup("no variant changes latencies or throughput by more than 2 %")]


def _ratio(row: Row, names: list[str]) -> float:
    """Return the largest of the runs' values over the smallest."""
    values = [value for name in names if (value := row["values"][name]) is not None and value > 0]
    return max(values) / min(values) if values else 0.0


def _one(table: dict[str, Any], name: str, found: list[tuple[_Effect, Row]], *, alone: bool) -> Markup:
    """Return what the only variant does: its largest effect; `alone`, its best and its worst."""
    start = Markup("{} ").format(code(name))
    if alone:
        start = Markup("Against {}, {}").format(code(table["base"]), start)
    good, bad = _effects(found, name)
    if not good and not bad:
        return start + "changes neither latencies nor throughput by more than 2 %"
    if alone:
        chosen = [side[0] for side in (good, bad) if side] if good and bad else (good or bad)[:2]
    else:
        chosen = [max(good + bad, key=lambda pair: _size(pair[1]))]
    return start + Markup(" and ").join(_verb(effect, share) for effect, share in chosen)


def _best(
    table: dict[str, Any],
    found: list[tuple[_Effect, Row]],
    effect: _Effect,
    row: Row,
    winner: str,
    *,
    alone: bool,
) -> Markup:
    """Return who is best at what sets the runs apart most; `alone`, also what that costs."""
    text = Markup("{} has {}").format(code(winner), _win(table, effect, row, winner))
    if not alone or winner == table["base"]:
        return text
    _, bad = _effects(found, winner)
    text = Markup("Against {}, ").format(code(table["base"])) + text
    return text + Markup(" but {}").format(_verb(*bad[0])) if bad else text


def _range(row: Row, names: list[str]) -> str:
    values = [value for name in names if (value := row["values"][name]) is not None]
    if not values:
        return "absent"
    low, high = (in_unit_words(value, row["unit"]) for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def _winner(table: dict[str, Any], effect: _Effect, row: Row) -> str | None:
    """Return the run that is best among those that keep up; the base unless a variant is notably better."""
    verdicts = table["verdicts"]
    values = {name: value for name, value in row["values"].items() if value is not None}
    steady = {name: v for name, v in values.items() if verdicts[name]["stability"] != "unstable"} or values
    if len(values) < 2 or _spread(values.values(), row["unit"]) < NOTABLE:
        return None
    pick = min if effect.best == "lowest" else max
    best = pick(steady, key=lambda name: steady[name])
    base = steady.get(table["base"])
    if base is None or best == table["base"]:
        return best
    notable = _spread((base, steady[best]), row["unit"]) >= NOTABLE
    return best if notable and is_shown(row["differences"][best]) else table["base"]


def _win(table: dict[str, Any], effect: _Effect, row: Row, winner: str) -> Markup:
    """Return `the lowest median TTFT (32 ms, −88 %)`; for the base, with the run that is worst."""
    words = f"the {effect.best} {effect.words} ({in_unit_words(row['values'][winner], row['unit'])}"
    if winner != table["base"]:
        gain = difference_words(row, winner)
        return Markup("{}{})").format(words, f", {gain}" if gain else "")
    others = {name: row["values"][name] for name in table["variants"] if row["values"][name] is not None}
    pick = max if effect.best == "lowest" else min
    worst = pick(others, key=lambda name: others[name])
    text = in_unit_words(others[worst], row["unit"])
    return Markup("{}; {} {})").format(words, code(worst), text)


def _effects(found: list[tuple[_Effect, Row]], name: str) -> tuple[_Shares, _Shares]:
    """Return what a variant notably improves and worsens, largest first."""
    shares = [(effect, row["differences"][name]["relative"]) for effect, row in found if _has(row, name)]
    notable = [(effect, share) for effect, share in shares if abs(share) >= NOTABLE]
    notable.sort(key=lambda pair: -_size(pair[1]))
    good = [pair for pair in notable if (pair[1] < 0) == (pair[0].best == "lowest")]
    return good, [pair for pair in notable if pair not in good]


def _verb(effect: _Effect, share: float) -> Markup:
    if share >= 1:
        return Markup("raises {} {}×").format(effect.words, number(1 + share))
    verb = "raises" if share > 0 else "lowers"
    return Markup("{} {} by {}").format(verb, effect.words, percent(abs(share)))


def _has(row: Row, variant: str) -> bool:
    found = row["differences"][variant]
    return found is not None and found["relative"] is not None and is_shown(found)


def _size(share: float) -> float:
    """Return how large a relative difference is, so that halving counts as much as doubling."""
    ratio = max(1 + share, 1e-9)
    return max(ratio, 1 / ratio)


def _spread(values: Iterable[float], unit: str) -> float:
    """Return how far apart values are, relative to the largest; for shares, in absolute terms."""
    low, high = min(found := list(values)), max(found)
    if unit == "share":
        return high - low
    return (high - low) / high if high else 0.0


def _listed(words: list[Any]) -> Markup:
    head, last = words[:-1], words[-1]
    return Markup("{} and {}").format(Markup(", ").join(head), last) if head else Markup("{}").format(last)


def code(name: str) -> Markup:
    """Return the name of a run as it stands in a sentence."""
    return Markup("<code>{}</code>").format(name)
