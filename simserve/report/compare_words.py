"""What changed and what it did, in one sentence."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from markupsafe import Markup

from simserve.report.difference_words import (
    Row,
    change_words,
    difference_words,
    in_unit_words,
    is_shown,
    setting_name,
    value_words,
)
from simserve.report.format import number, percent

NOTABLE = 0.02
"""Relative differences below this are not worth a word in the sentence."""

MAX_CHANGES = 2
"""Settings named in the sentence; more are only counted."""


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
    _Effect("whole.output_tokens_per_s", "output tokens/s", "highest"),
    _Effect("whole.hit_rate", "prefix hit rate", "highest"),
)

_Shares = list[tuple[_Effect, float]]


def comparison_headline(table: dict[str, Any]) -> Markup:
    """Return the sentence for a comparison (the content of compare.json)."""
    rows = {row["key"]: row for row in table["measures"]}
    found = [(effect, rows[effect.key]) for effect in _EFFECTS if effect.key in rows]
    variants = table["variants"]
    stable = [name for name in variants if table["verdicts"][name]["stability"] != "unstable"]
    if stable and table["verdicts"][table["base"]]["stability"] == "unstable":
        body = _recovered(table, found, stable)
    elif len(variants) == 1:
        body = _one(table, variants[0], found)
    else:
        body = _several(table, [pair for pair in found if pair[0].key in _OVERVIEW])
    return body + _verdicts({name: table["verdicts"][name] for name in (table["base"], *variants)}) + "."


_OVERVIEW = ("whole.ttft_ms.p50", "whole.itl_ms.p99", "whole.output_tokens_per_s", "whole.hit_rate")


def _one(table: dict[str, Any], name: str, found: list[tuple[_Effect, Row]]) -> Markup:
    """Return what the only variant does: its best and its worst effect."""
    start = Markup("Against {}, {}{} ").format(code(table["base"]), code(name), _own_value(table, name, None))
    good, bad = _effects(found, name)
    if not good and not bad:
        return start + "changes neither latencies nor throughput by more than 2 %"
    chosen = [side[0] for side in (good, bad) if side] if good and bad else (good or bad)[:2]
    return start + Markup(" and ").join(_verb(effect, share) for effect, share in chosen)


def _several(table: dict[str, Any], found: list[tuple[_Effect, Row]]) -> Markup:
    """Return which run is best at what, and what the variants among them pay for it."""
    base, shared = table["base"], _shared_change(table)
    own = value_words(shared["base"]) if shared else ""
    tail = f" ({setting_name(shared)} {own})" if shared and own != base else ""
    start = Markup("Against {}{}, ").format(code(base), tail)
    wins: dict[str, list[Markup]] = {}
    for effect, row in found:
        winner = _winner(table, effect, row)
        if winner is not None:
            wins.setdefault(winner, []).append(_win(table, effect, row, winner))
    if not wins:
        return start + "no variant changes latencies or throughput by more than 2 %"
    if set(wins) == {base}:
        return Markup("Against its variants, {} has {}").format(code(base), _listed(wins[base]))
    order = sorted(wins, key=lambda name: name == base)  # variants first
    return start + Markup("; ").join(_wins(table, found, shared, name, wins[name]) for name in order)


def _recovered(table: dict[str, Any], found: list[tuple[_Effect, Row]], steady: list[str]) -> Markup:
    """Return what the variants do that keep up with arrivals behind which the base falls."""
    shared = _shared_change(table)
    who = _listed([Markup("{}{}").format(code(name), _own_value(table, name, shared)) for name in steady])
    verb = "keeps" if len(steady) == 1 else "keep"
    figures = [
        f"{effect.words} {_range(row, steady)}"
        for effect, row in found
        if effect.key in ("whole.ttft_ms.p50", "whole.output_tokens_per_s")
    ]
    text = Markup("Against {}, {} {} up with the arrivals").format(code(table["base"]), who, verb)
    return text + Markup(": {}").format(_listed(figures)) if figures else text


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


def _wins(
    table: dict[str, Any],
    found: list[tuple[_Effect, Row]],
    shared: dict[str, Any] | None,
    name: str,
    words: list[Markup],
) -> Markup:
    if name == table["base"]:
        return Markup("{} keeps {}").format(code(name), _listed(words))
    text = Markup("{}{} has {}").format(code(name), _own_value(table, name, shared), _listed(words))
    _, bad = _effects(found, name)
    return text + Markup(" but {}").format(_verb(*bad[0])) if bad else text


def _effects(found: list[tuple[_Effect, Row]], name: str) -> tuple[_Shares, _Shares]:
    """Return what a variant notably improves and worsens, largest first."""
    shares = [(effect, row["differences"][name]["relative"]) for effect, row in found if _has(row, name)]
    notable = [(effect, share) for effect, share in shares if abs(share) >= NOTABLE]
    notable.sort(key=lambda pair: -_size(pair[1]))
    good = [pair for pair in notable if (pair[1] < 0) == (pair[0].best == "lowest")]
    return good, [pair for pair in notable if pair not in good]


def _verdicts(verdicts: dict[str, dict[str, Any]]) -> Markup:
    """Return what must be said before any latency is believed."""
    unstable = [name for name, verdict in verdicts.items() if verdict["stability"] == "unstable"]
    partial = [
        Markup("{} completes {} of {} requests").format(
            code(name), number(verdict["completed"]), number(verdict["requests"])
        )
        for name, verdict in verdicts.items()
        if verdict["completed"] < verdict["requests"]
    ]
    parts = partial[:]
    if unstable and len(unstable) == len(verdicts):
        parts.append(Markup("every run falls behind the arrivals (unstable)"))
    elif unstable:
        verb = "falls" if len(unstable) == 1 else "fall"
        who = _listed([code(name) for name in unstable])
        parts.append(Markup("{} {} behind the arrivals (unstable)").format(who, verb))
    return Markup("; ") + Markup(", ").join(parts) if parts else Markup("")


def _verb(effect: _Effect, share: float) -> Markup:
    if share >= 1:
        return Markup("raises {} {}×").format(effect.words, number(1 + share))
    verb = "raises" if share > 0 else "lowers"
    return Markup("{} {} by {}").format(verb, effect.words, percent(abs(share)))


def _parenthesis(words: Iterable[str], count: int) -> str:
    shown = list(words)[:MAX_CHANGES]
    if not shown:
        return " (no setting differs)"
    more = f" and {count - len(shown)} more" if count > len(shown) else ""
    return f" ({', '.join(shown)}{more})"


def _shared_change(table: dict[str, Any]) -> dict[str, Any] | None:
    """Return the one setting that every variant changes, and nothing else; None if there is no such one."""
    lists = list(table["changes"].values())
    first = lists[0][0] if lists and lists[0] else None
    same = (
        all(len(found) == 1 and setting_name(found[0]) == setting_name(first) for found in lists)
        if first
        else False
    )
    return first if same else None


def _own_value(table: dict[str, Any], name: str, shared: dict[str, Any] | None) -> str:
    if name == table["base"]:
        return ""
    found = table["changes"][name]
    if shared:
        own = value_words(found[0]["variant"])
        return f" ({own})" if own != name else ""
    return _parenthesis(map(change_words, found), len(found))


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
