"""What variants change in a clause: the measure that sets runs of equal load apart most, by its ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from markupsafe import Markup

from simserve.report.compare.settings import Row, in_unit_words, is_shown, relative_words
from simserve.report.words import LOAD, number, percent

NOTABLE = 0.02
"""Relative differences below this are not worth a word in the sentence."""

MAX_TIES = 2
"""Runs named together where they are equally good; more are only counted."""


class _Effect(NamedTuple):
    key: str
    words: str
    better: int
    """1 if more is better, else -1."""
    many: bool = False
    """Words in the plural."""


_EFFECTS = (
    _Effect("whole.ttft_ms.p50", "median TTFT", -1),
    _Effect("whole.itl_ms.p99", "p99 ITL", -1),
    _Effect("whole.ttft_ms.p99", "p99 TTFT", -1),
    _Effect("whole.tpot_ms.p50", "median TPOT", -1),
    _Effect("rates.output_tokens_per_s", "output tokens/s", 1, many=True),
)

Shares = dict[str, float]
"""Relative differences from the base, by run."""


def effects(
    table: dict[str, Any],
    rows: Mapping[str, Row],
    steady: list[str],
    able: list[str],
    *,
    closed: bool,
    alone: bool,
) -> list[Markup]:
    """Return what the variants change at the base's load, as at most one clause.

    `steady` runs carry their load; those of them that are `able` also meet the SLO, if one does. `alone`:
    nothing stands before the clause, so it names the base and what its best variant costs.
    """
    base = table["base"]
    if base not in steady:
        return _others(rows, steady)
    equal = [name for name in table["variants"] if name in able and not changes_load(table, name)]
    if base not in able or not equal:
        return []
    found = [(effect, _shares(rows[effect.key], equal)) for effect in _EFFECTS if effect.key in rows]
    found = [(effect, shares) for effect, shares in found if shares]
    if closed and any(effect.many and _largest(shares) >= 1 + NOTABLE for effect, shares in found):
        found = [(effect, shares) for effect, shares in found if effect.many]
    start = Markup("Against {}, ").format(code(base)) if alone else Markup("")
    if len(table["variants"]) == 1:
        return [start + _one(table["variants"][0], found, alone=alone)]
    if not found or max(_largest(shares) for _, shares in found) < 1 + NOTABLE:
        return [Markup("no variant changes latencies or throughput by more than 2 %")]
    effect, shares = max(found, key=lambda pair: _largest(pair[1]))
    return [start + _span(effect, shares, found if alone else [])]


def _others(rows: Mapping[str, Row], steady: list[str]) -> list[Markup]:
    """Return the median TTFT of the runs that keep up where the base does not."""
    row = rows.get("whole.ttft_ms.p50")
    values = [value for name in steady if row and (value := row["values"][name]) is not None]
    if row is None or not values:
        return []
    low, high = (in_unit_words(end, row["unit"]) for end in (min(values), max(values)))
    who = Markup("{} has").format(code(steady[0])) if len(steady) == 1 else Markup("the others have")
    return [who + Markup(" a median TTFT of {}").format(low if low == high else f"{low} to {high}")]


def changes_load(table: dict[str, Any], name: str) -> bool:
    """Return True for a variant that is asked for more or less than the base is."""
    return any(change["name"].rpartition(".")[2] in LOAD for change in table["changes"].get(name, []))


def _shares(row: Row, names: list[str]) -> Shares:
    differences = {name: row["differences"][name] for name in names}
    return {
        name: found["relative"]
        for name, found in differences.items()
        if found is not None and found["relative"] is not None and is_shown(found)
    }


def _size(share: float) -> float:
    """Return how large a relative difference is, so that halving counts as much as doubling."""
    ratio = max(1 + share, 1e-9)
    return max(ratio, 1 / ratio)


def _largest(shares: Shares) -> float:
    return max(_size(share) for share in shares.values())


def _span(effect: _Effect, shares: Shares, others: list[tuple[_Effect, Shares]]) -> Markup:
    """Return how far a measure moves, and by which run; with what the best run pays for it among `others`."""
    low, high = min(shares.values()), max(shares.values())
    s = "" if effect.many else "s"
    if low <= -NOTABLE and high >= NOTABLE:
        text = Markup("{} range{} from {} ({}) to {} ({})")
        ends = (relative_words(low), _at(shares, low), relative_words(high), _at(shares, high))
        return text.format(effect.words, s, *ends)
    end = high if high >= NOTABLE else low
    amount = f"{number(1 + end)}×" if end >= 1 else percent(abs(end))
    verb = "rise" if end > 0 else "fall"
    by = "up to" if end >= 1 else "by up to"
    text = Markup("{} {}{} {} {} with {}").format(effect.words, verb, s, by, amount, _at(shares, end))
    if (end > 0) != (effect.better > 0):
        return text
    return text + _price(next(name for name, share in shares.items() if share == end), others)


def _at(shares: Shares, end: float) -> Markup:
    """Return the runs that lie at one end; those that show the same figure tie."""
    tied = [name for name, share in shares.items() if relative_words(share) == relative_words(end)]
    return listed([code(name) for name in tied]) if len(tied) <= MAX_TIES else Markup(f"{len(tied)} runs")


def _price(name: str, others: list[tuple[_Effect, Shares]]) -> Markup:
    """Return what gets worst under a run: `, which raises median TTFT 3×`; nothing if nothing does."""
    worse = [
        (effect, shares[name])
        for effect, shares in others
        if name in shares and abs(shares[name]) >= NOTABLE and (shares[name] > 0) != (effect.better > 0)
    ]
    if not worse:
        return Markup("")
    return Markup(", which {}").format(_verb(*max(worse, key=lambda pair: _size(pair[1]))))


def _one(name: str, found: list[tuple[_Effect, Shares]], *, alone: bool) -> Markup:
    """Return what the only variant does: its largest effect; `alone`, its best and its worst."""
    shares = [(effect, own[name]) for effect, own in found if abs(own[name]) >= NOTABLE]
    shares.sort(key=lambda pair: -_size(pair[1]))
    start = Markup("{} ").format(code(name))
    if not shares:
        return start + "changes neither latencies nor throughput by more than 2 %"
    good = [pair for pair in shares if (pair[1] > 0) == (pair[0].better > 0)]
    bad = [pair for pair in shares if pair not in good]
    chosen = shares[:1]
    if alone:
        chosen = [side[0] for side in (good, bad)] if good and bad else shares[:2]
    return start + Markup(" and ").join(_verb(effect, share) for effect, share in chosen)


def _verb(effect: _Effect, share: float) -> Markup:
    if share >= 1:
        return Markup("raises {} {}×").format(effect.words, number(1 + share))
    verb = "raises" if share > 0 else "lowers"
    return Markup("{} {} by {}").format(verb, effect.words, percent(abs(share)))


def spread(values: Iterable[float]) -> float:
    """Return how far apart values are, relative to the largest."""
    low, high = min(found := list(values)), max(found)
    return (high - low) / high if high else 0.0


def listed(words: list[Any]) -> Markup:
    """Return `a, b and c`."""
    head, last = words[:-1], words[-1]
    return Markup("{} and {}").format(Markup(", ").join(head), last) if head else Markup("{}").format(last)


def code(name: str) -> Markup:
    """Return the name of a run as it stands in a sentence."""
    return Markup("<code>{}</code>").format(name)
