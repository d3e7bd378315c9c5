"""What a study found, in a sentence."""

from __future__ import annotations

from typing import Any

from simserve.metrics.names import short_names
from simserve.report.format import money, number, percent
from simserve.report.load_words import LOAD


def settings_words(settings: dict[str, Any]) -> str:
    """Return settings as people write them: `tp = 2, replicas = 4`."""
    names = short_names(settings)
    return ", ".join(f"{names[path]} = {value}" for path, value in settings.items()) or "as the scenario says"


def sweep_headline(study: dict[str, Any], done: list[dict[str, Any]]) -> str:
    """Return the sentence at the top of a sweep's page."""
    left = len(study["points"]) - len(done)
    if study["kind"] == "search":
        return _search_headline(study, left)
    head = f"{len(done):,} points" + (f" ({left:,} more left out)" if left else "")
    short = [point for point in done if too_short(point)]
    if short:
        head += f", {len(short):,} of them too short to tell whether the load is carried"
        done = [point for point in done if not too_short(point)]
        if not done:
            return f"{head}: about {max(p['needed_requests'] for p in short):,} requests would tell"
    if study["targets"]:
        met = [point for point in done if point["slo"] == "met"]
        if not met:
            nearest = max(done, key=lambda p: min(t["estimate"] or 0 for t in p["targets"]))
            return f"{head}, none of which meets the SLO with confidence; the nearest is {_at(nearest)}"
        head += f", {len(met):,} of them meet the SLO with confidence"
        done = met
    key, words = _aim(done)
    currency = study.get("currency", "$")
    best = min(done, key=lambda p: p["means"][key] if key.startswith("cost") else -p["means"][key])

    def shown(point: dict[str, Any]) -> str:
        value = point["means"][key]
        return money(value, currency) if key.startswith("cost") else number(value)

    value = shown(best)
    tied = [point for point in done if shown(point) == value]
    return f"{head}; {words} {value}{_chosen(tied)}"


def too_short(point: dict[str, Any]) -> bool:
    """Return True for a point whose runs cannot tell whether the load is carried: it ranks nowhere."""
    return bool(point.get("needed_requests")) and point["slo"] != "missed"


def _search_headline(study: dict[str, Any], left: int) -> str:
    tried = f"{len(study['points']):,} points tried" + (f", {left:,} of which cannot be run" if left else "")
    if not study["front"]:
        return f"{tried}; none meets the SLO with confidence"
    meets = " of those that meet the SLO with confidence" if study["targets"] else ""
    return f"{tried}; {len(study['front']):,} are beaten by no other{meets}"


def _chosen(tied: list[dict[str, Any]]) -> str:
    """Return what the best points have in common, or that they tie; the load is none of it."""
    first = tied[0]["settings"]
    names = short_names(first)
    shared = [
        f"{names[path]} = {value}"
        for path, value in first.items()
        if path.rpartition(".")[2] not in LOAD and all(p["settings"].get(path) == value for p in tied)
    ]
    words = f" with {', '.join(shared)}" if shared else ""
    return f", a tie of {len(tied):,} points{', all' * bool(words)}{words}" if len(tied) > 1 else words


def _at(point: dict[str, Any]) -> str:
    return settings_words(point["settings"])


def _aim(done: list[dict[str, Any]]) -> tuple[str, str]:
    """Return what makes a point best: its cost where every point has one, else its throughput."""
    cost = "cost_per_million_output_tokens"
    if all(point["means"][cost] is not None for point in done):
        return cost, "the least cost per million output tokens is"
    if all(point["means"]["goodput_per_gpu"] is not None for point in done):
        return "goodput_per_gpu", "the most good requests/s per GPU are"
    return "output_tokens_per_s", "the most output tokens/s are"


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
    return (
        f"{number(estimate)} {unit} within the SLO; between {number(found['low'])} and "
        f"{number(found['high'])} with {confidence} confidence"
    )


def capacity_limit(study: dict[str, Any]) -> str:
    """Return what limits the deployment at the highest load shown to be carried, or the lowest tried."""
    low = study["capacity"]["low"]
    carried = [point for point in study["points"] if low is not None and point["load"] <= low]
    point = carried[-1] if carried else study["points"][0]
    return f"At {number(point['load'])} {study['unit']} limited by {point['limited_by']}"


def size_headline(study: dict[str, Any]) -> str:
    """Return the sentence at the top of the page of a search for the cheapest deployment."""
    if study["feasible"]:
        best = study["feasible"][0]
        gpus = f"{best['gpus']:,} GPUs are" if best["gpus"] != 1 else "1 GPU is"
        return (
            f"{gpus} enough: {best['units']} x {best['words']}, "
            f"{money(best['price_per_hour'], study.get('currency', '$'))}/h; limited by {best['limited_by']}"
        )
    if study["missed"]:
        best = study["missed"][0]
        return (
            "No deployment of this space meets the SLO with confidence; the nearest, "
            f"{best['units']} x {best['words']}, misses: {best['shortfall']}"
        )
    nearest = max(study["impossible"], key=lambda one: one["nearness"])
    return (
        "No deployment of this space can meet the SLO; "
        + ("the nearest" if nearest["nearness"] else "none fits, such as")
        + f" {nearest['words']}: {nearest['because']}"
    )
