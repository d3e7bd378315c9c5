"""What a comparison answers, in one sentence: who meets the SLO, at what cost, what the variants change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from simserve.metrics.store import StoredRun
from simserve.report.compare.effects import NOTABLE, code, effects, listed, spread
from simserve.report.compare.settings import Row, is_shown
from simserve.report.words import latency, money, number, percent

# Is a prefill/decode split worth it? The answer of a comparison with and without one, in a sentence.

NOTABLE_GAP = 0.02
"""Relative difference of goodput below which neither is called better."""


def split_headline(runs: dict[str, StoredRun]) -> Markup | None:
    """Return the sentence for runs of which some are split and some are not; None for other comparisons."""
    able = {
        name: run for name, run in runs.items() if run.summary["counts"]["completed"] and not run.measured
    }
    splits = {name: run for name, run in able.items() if run.summary.get("split")}
    whole = {name: run for name, run in able.items() if name not in splits}
    if not splits or not whole or len({_gpus(run) for run in able.values()}) > 1:
        return None
    one, other = _best(splits), _best(whole)
    words = (_word(runs[one]), _word(runs[other]))
    gpus = Markup("on {} GPUs").format(_gpus(runs[one]))
    if words == ("missed", "missed"):
        return Markup("Both miss the SLO {}: {}.").format(gpus, _missed(runs, one, other))
    if words[1] == "met" != words[0]:  # the one that meets it first
        one, other, words = other, one, words[::-1]
    rates = (_rate(runs[one]), _rate(runs[other]))
    figures = Markup("{} against {} {}").format(number(rates[0]), number(rates[1]), _what(runs[one]))
    if words == ("inconclusive", "inconclusive"):
        found = Markup("Neither {} nor {} is shown to meet the SLO {}").format(_code(one), _code(other), gpus)
    elif words[0] == words[1]:
        slo = Markup("Both meet the SLO; a" if words[0] else "A")
        found = Markup("{} {} {}, {} against {}").format(slo, _verdict(rates), gpus, _code(one), _code(other))
    else:
        found = Markup("{} {} {}, {} {}").format(
            _code(one), _SLO[words[0]], gpus, _code(other), _SLO[words[1]].replace("the SLO", "it")
        )
    ttft = _both(runs[one], runs[other], "ttft_ms", "p50")
    return found + Markup(": {}, median TTFT {}.").format(figures, ttft)


_SLO = {
    "met": "meets the SLO",
    "missed": "misses the SLO",
    "inconclusive": "may not meet the SLO",
    "": "has no SLO",
}
"""What a run does with its SLO, by the word of its verdict."""


def _word(run: StoredRun) -> str:
    found = run.summary.get("slo_verdict")
    return found["outcome"] if found else ""


def _missed(runs: dict[str, StoredRun], one: str, other: str) -> Markup:
    """Return by how much both runs miss the SLO."""
    verdicts = [runs[name].summary["slo_verdict"] for name in (one, other)]
    words = [
        Markup("{} keeps {} within it (target: {})").format(
            _code(name), percent(found["kept"]), percent(found["target"])
        )
        for name, found in zip((one, other), verdicts, strict=True)
    ]
    return Markup(", ").join(words)


def _verdict(rates: tuple[float, float]) -> str:
    split, whole = rates
    if abs(split - whole) <= NOTABLE_GAP * max(split, whole):
        return "split makes little difference"
    return "split is worth it" if split > whole else "split is not worth it"


def _best(runs: dict[str, StoredRun]) -> str:
    """Return the run with the most good requests/s, of those that meet the SLO or else carry the load."""
    runs = {name: run for name, run in runs.items() if _word(run) == "met"} or runs
    stable = {n: run for n, run in runs.items() if run.summary["stability"]["verdict"] != "unstable"} or runs
    return max(
        stable, key=lambda name: (_rate(stable[name]), -stable[name].summary["whole"]["e2e_ms"]["p50"])
    )


def _rate(run: StoredRun) -> float:
    rates: dict[str, Any] = run.summary["rates"]
    goodput = rates["goodput_requests_per_s"]
    return (rates["requests_per_s"] if goodput is None else goodput) or 0.0


def _what(run: StoredRun) -> str:
    return "good requests/s" if run.summary["whole"]["slo"] else "requests/s"


def _both(one: StoredRun, other: StoredRun, key: str, statistic: str) -> str:
    values = [run.summary["whole"][key][statistic] for run in (one, other)]
    return f"{latency(values[0])} against {latency(values[1])}"


def _gpus(run: StoredRun) -> int:
    return sum(pool["gpus"] for pool in run.summary["pools"])


def _code(name: str) -> Markup:
    return Markup("<code>{}</code>").format(name)


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
