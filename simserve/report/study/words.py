"""What a study found, in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from simserve.metrics.measures import short_names
from simserve.report.run.headline import deployment_words, is_one_gpu, types_words
from simserve.report.words import LOAD, money, number, percent


class Aim(NamedTuple):
    """What makes a point of a sweep the best."""

    key: str
    words: str
    label: str
    least: bool = False

    def shown(self, point: dict[str, Any], currency: str) -> str:
        """Return the point's figure."""
        value = point["means"][self.key]
        return money(value, currency) if self.key.startswith("cost") else number(value)


_AIMS = (
    Aim(
        "cost_per_million_output_tokens", "the least cost per million output tokens is", "cost/M tokens", True
    ),
    Aim("goodput_per_gpu", "the most good requests/s per GPU are", "good requests/s per GPU"),
    Aim("output_tokens_per_s", "the most output tokens/s are", "output tokens/s"),
)


def aim_of(done: list[dict[str, Any]]) -> Aim:
    """Return the first aim of which every point has a figure: cost, goodput per GPU, or throughput."""
    return next(
        (aim for aim in _AIMS if all(point["means"].get(aim.key) is not None for point in done)), _AIMS[-1]
    )


def ranked(study: dict[str, Any], done: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the points among which the best is chosen, best first: those that meet an SLO."""
    able = [p for p in done if not too_short(p) and (p["slo"] == "met" or not study["targets"])]
    if not able:
        return []
    aim = aim_of(able)
    return sorted(able, key=lambda p: (p["means"][aim.key] or 0.0) * (1 if aim.least else -1))


def sweep_headline(study: dict[str, Any], done: list[dict[str, Any]]) -> str:
    """Return the sentence at the top of a sweep's page."""
    if study["kind"] == "search":
        return _search_headline(study, len(study["points"]) - len(done))
    able, tell = ranked(study, done), [point for point in done if not too_short(point)]
    if not tell:
        needed = max(p["needed_requests"] for p in done)
        return f"All {len(done):,} points are too short to judge: about {needed:,} requests would tell"
    short = f" ({len(done) - len(tell):,} were too short to tell)" if len(tell) < len(done) else ""
    if not able:
        nearest = max(tell, key=lambda p: min(t["estimate"] or 0 for t in p["targets"]))
        share = percent(min(t["estimate"] or 0 for t in nearest["targets"]))
        return (
            f"None of {len(done):,} points meets the SLO with confidence{short}; the nearest, point "
            f"{nearest['point']}, keeps {share} within it"
        )
    aim, currency = aim_of(able), study.get("currency", "$")
    head = (
        f"{len(able):,} of {len(done):,} points meet the SLO with confidence{short}"
        if study["targets"]
        else f"{len(done):,} points{short}"
    )
    value = aim.shown(able[0], currency)
    return f"{head}; {aim.words} {value}{_chosen([p for p in able if aim.shown(p, currency) == value])}"


def too_short(point: dict[str, Any]) -> bool:
    """Return True for a point whose runs cannot tell whether the load is carried: it ranks nowhere."""
    return bool(point.get("needed_requests")) and point["slo"] != "missed"


def _search_headline(study: dict[str, Any], left: int) -> str:
    tried = f"{len(study['points']):,} points tried"
    lost = f"; {left:,} could not run" if left else ""
    if not study["front"]:
        return f"None of {tried} meets the SLO with confidence{lost}"
    within = " within the SLO" if study["targets"] else ""
    front = len(study["front"])
    best = "are the best trade-offs" if front > 1 else "is the best"
    return f"{front:,} of {tried} {best}{within}{lost}"


MOST_SETTINGS = 1
"""Settings that a headline names; more are in the tiles, with the point."""


def _chosen(tied: list[dict[str, Any]]) -> str:
    """Return what the best points have in common, or that they tie; the load is none of it."""
    first = tied[0]["settings"]
    names = short_names(first)
    shared = [
        f"{names[path]} = {value}"
        for path, value in first.items()
        if path.rpartition(".")[2] not in LOAD and all(p["settings"].get(path) == value for p in tied)
    ]
    if len(tied) > 1:
        words = f", all with {shared[0]}" if len(shared) == MOST_SETTINGS else ""
        return f", a tie of {len(tied):,} points{words}"
    return (
        f" with {shared[0]}"
        if len(shared) == MOST_SETTINGS
        else f", at point {tied[0]['point']}" * bool(shared)
    )


def gap_words(share: float) -> str:
    """Return how much dearer something is: `the same price`, `25 % more`."""
    return (
        "the same price"
        if abs(share) < 0.005
        else f"{percent(round(abs(share), 2))} {'more' if share > 0 else 'less'}"
    )


def capacity_headline(study: dict[str, Any]) -> str:
    """Return the sentence at the top of a capacity's page."""
    found, unit = study["capacity"], study["unit"]
    low, high = study["range"]
    confidence = percent(study["confidence"])
    if found["low"] is None:
        point = study["points"][0]
        worst = min(point["targets"], key=lambda t: (t["low"] or 0) - t["share"])
        how = f"{worst['words']}: {percent(worst['estimate'])}, at least {percent(worst['low'])}"
        stable = ", and the queue grew until the end" if point["stability"] == "unstable" else ""
        return f"Not even {number(low)} {unit} are shown to be carried within the SLO ({how}{stable})"
    if found["high"] is None:
        return (
            f"At least {number(found['low'])} {unit} are carried within the SLO, and {number(high)}, the "
            "most that was tried, is not shown to be too much"
        )
    estimate = found["estimate"] if found["estimate"] is not None else found["low"]
    where = (
        f"{deployment_words(study['pools'])} carr{_ies(study['pools'])}" if study.get("pools") else "Carried:"
    )
    return (
        f"{where} {number(estimate)} {unit} within the SLO "
        f"({number(found['low'])} to {number(found['high'])} with {confidence} confidence)"
    )


def _ies(pools: list[dict[str, Any]]) -> str:
    return "ies" if is_one_gpu(pools) else "y"


def capacity_limit(study: dict[str, Any]) -> str:
    """Return what limits the deployment at the highest load shown to be carried, or the lowest tried."""
    low = study["capacity"]["low"]
    carried = [point for point in study["points"] if low is not None and point["load"] <= low]
    point = carried[-1] if carried else study["points"][0]
    return f"At {number(point['load'])} {study['unit']} limited by {point['limited_by']}"


def size_headline(study: dict[str, Any]) -> str:
    """Return the sentence at the top of the page of a search for the cheapest deployment."""
    deployments = f"{study['work']['deployments']:,} deployments"
    if study["feasible"]:
        best = study["feasible"][0]
        price = money(best["price_per_hour"], study.get("currency", "$"))
        ties = sum(one["price_per_hour"] == best["price_per_hour"] for one in study["feasible"])
        name, one = _named(best), best["gpus"] == 1
        rank = f"one of {ties} that tie as cheapest" if ties > 1 else "the cheapest"
        return f"{name} meet{'s' * one} the SLO for {price}/h, {rank} of {deployments}"
    if study["missed"]:
        best = study["missed"][0]
        start = f"None of {deployments} meets the SLO with confidence; the nearest, {_named(best)}"
        return f"{start}, misses: {best['shortfall']}"
    nearest = max(study["impossible"], key=lambda one: one["nearness"])
    return (
        f"None of {deployments} can meet the SLO; "
        + ("the nearest" if nearest["nearness"] else "none fits, such as")
        + f" {nearest['words']}: {nearest['because']}"
    )


def _named(entry: dict[str, Any]) -> str:
    return deployment_words(entry["pools"]) + types_words(entry["settings"])
