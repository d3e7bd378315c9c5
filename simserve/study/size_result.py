"""What a search for the cheapest deployment leaves: what meets the SLO, by price, what misses, the rest."""

from __future__ import annotations

from typing import Any

from simserve.study.campaign import Campaign
from simserve.study.facts import facts_of
from simserve.study.shortfall import first_to_break, shortfall_words
from simserve.study.size import SizeSearch, State, Tried

Entry = dict[str, Any]


def size_study(campaign: Campaign, search: SizeSearch) -> dict[str, Any]:
    """Return what study.json holds."""
    spec, it = search.spec, campaign.it
    tried = [one for state in search.states for one in state.tried.values()]
    met = sorted((one for one in tried if one.met), key=_by_price)
    missed = sorted((one for one in tried if not one.met), key=_by_shortfall)
    return {
        "kind": "size",
        "schema": 1,
        **facts_of(it),
        "confidence": spec.confidence,
        "replications": spec.replications,
        "targets": [target.words for target in search.targets],
        "feasible": [_entry(one, search) for one in met],
        "missed": [_entry(one, search) for one in missed[: spec.misses]],
        "missed_in_all": len(missed),
        "impossible": [_impossible(state) for state in search.states if state.bound.impossible],
        "families": [_family(state) for state in search.states if not state.bound.impossible],
        "work": {
            "deployments": sum(max(state.most, 1) for state in search.states),
            "families": len(search.states),
            "simulated": len(tried),
            "stopped_early": sum(bool(one.stopped) for one in tried),
            "simulated_requests": campaign.counts.simulated_requests,
        },
    }


def _by_price(one: Tried) -> tuple[float, int, int]:
    return one.price_per_hour, one.family.gpus * one.units, one.family.index


def _by_shortfall(one: Tried) -> tuple[bool, float, float]:
    """Whole runs first, those nearest to the targets first, then the cheaper."""
    short = max(
        (target["share"] - (target["low"] or 0) for target in one.point["targets"]), default=float("inf")
    )
    return bool(one.stopped) or one.point["stability"] == "unstable", short, one.price_per_hour


def _entry(one: Tried, search: SizeSearch) -> Entry:
    return {
        "settings": one.family.choices,
        "layout": one.family.layout,
        "units": one.units,
        "words": one.family.words,
        "gpus": one.family.gpus * one.units,
        "price_per_hour": one.price_per_hour,
        "pools": one.family.settings(one.units)["pools"],
        "keys": one.family.keys,
        "stopped": one.stopped,
        "shortfall": "" if one.met else shortfall_words(one.point, one.stopped),
        "breaks_first": first_to_break(one.point["means"], search.targets),
        **one.point,
    }


def _impossible(state: State) -> Entry:
    return {
        "settings": state.family.choices,
        "words": state.family.words,
        "because": state.bound.impossible.partition(" because ")[2] or state.bound.impossible,
        "units": state.most,
        "nearness": state.bound.nearness,
    }


def _family(state: State) -> Entry:
    return {
        "words": state.family.words,
        "price_per_unit_hour": state.family.price_per_hour,
        "gpus_per_unit": state.family.gpus,
        "least_units": max(state.bound.units, 1),
        "bound": state.bound.reason,
        "most_units": state.most,
        "found_units": state.high,
        "tried": sorted(state.tried),
        "closed": state.closed,
    }
