"""The cheapest deployment that is shown to meet the SLO, with as few simulated requests as that takes.

Deployments come in families that grow by equal units. Bounds rule out families and small sizes. More units
never serve worse [assumption, checked against enumeration in the tests], so each family has a least size that
meets the SLO, found by bisection below the best price so far; a family that misses at the last size that
would still be cheaper is done with after one run. A run first does its first quarter: if that alone has more
misses than the target allows the whole run, the rest is spared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from simserve.deploy.build import Parts, slo_of
from simserve.deploy.workload import build_trace
from simserve.errors import ScenarioError
from simserve.hardware import load_gpu
from simserve.metrics.slo_verdict import INCONCLUSIVE
from simserve.metrics.stability import TOO_SHORT
from simserve.metrics.targets import Target, targets_of
from simserve.report.words import money
from simserve.scenario.load import LoadedScenario, changed
from simserve.scenario.study_spec import SizeSpec
from simserve.study.bounds import Bound, bound, workload_of
from simserve.study.campaign import Campaign, facts_of
from simserve.study.files import Row
from simserve.study.layouts import Family, families
from simserve.study.long_enough import Group, hopeless, missing_words, run_long_enough, stage_settings
from simserve.study.plan import constrained
from simserve.study.points import distinct, first_to_break, shortfall_words, summarised

AHEAD = 2
"""Families that are tried at a time, whatever the number of workers, so that the same is found everywhere."""
CLEAR = 0.998
"""Confidence at which the first replication alone settles the matter."""


@dataclass
class Tried:
    """A deployment that was simulated, at least in part."""

    family: Family
    units: int
    rows: list[Row]
    point: dict[str, Any]
    stopped: str = ""
    """Why it was not simulated to the end, if it was not."""

    @property
    def price_per_hour(self) -> float:
        """Price of all GPUs."""
        return self.family.price_per_hour * self.units

    @property
    def met(self) -> bool:
        """True if the whole of it was run and is shown to meet the SLO."""
        return not self.stopped and self.point["slo"] == "met"


@dataclass
class State:
    """A family on the way: sizes below `low` are known not to do, `high` is the least known to do."""

    family: Family
    bound: Bound
    most: int
    low: int = 1
    high: int | None = None
    closed: str = ""
    """Why nothing cheaper than the best can come of it."""
    tried: dict[int, Tried] = field(default_factory=dict)
    looked_at: bool = False
    """Its largest size has had its chance to show that the family is hopeless."""


def require_size(it: LoadedScenario) -> SizeSpec:
    """Return the size block of a scenario; raises `ScenarioError` for what cannot be answered."""
    spec = it.scenario.size
    if spec is None:
        raise ScenarioError(
            f"{it.document.source}: has no size; add one, such as "
            "size: {catalogue: {h100_sxm: {price_per_gpu_hour: 2.5}}}"
        )
    if not targets_of(slo_of(it.scenario)):
        raise ScenarioError(f"{it.document.source}: size needs an slo, such as slo: {{ttft_ms: 1000}}")
    if it.scenario.pools[0].afd is not None:  # neither the bounds nor the prices know of its FFN GPUs
        raise ScenarioError(
            "size does not plan FFN GPUs of their own; compare such deployments with a sweep over "
            "pools.0.afd.ffn_gpus and pools.0.replicas",
            place=it.document.where(("pools", 0, "afd")),
        )
    return spec


class SizeSearch:
    """The search of one space."""

    def __init__(self, campaign: Campaign, spec: SizeSpec) -> None:
        self.campaign = campaign
        self.it = campaign.it
        self.spec = spec
        self.targets: list[Target] = targets_of(slo_of(self.it.scenario))
        self.two_sided = 2 * spec.confidence - 1
        """Confidence of the two-sided interval whose lower end is the one-sided bound."""
        self.states = self._bounded()
        self.best: Tried | None = None
        campaign.counts.pruned = sum(bool(state.bound.impossible) for state in self.states)

    def run(self) -> None:
        """Search until no family can hold anything cheaper than the best."""
        while True:
            self._close_dear_ones()
            open_ones = [state for state in self.states if not state.closed]
            if not open_ones:
                return
            open_ones.sort(key=lambda state: (self._least_price(state), state.family.index))
            batch = open_ones[:AHEAD]
            new = [state for state in batch if not state.looked_at]
            if self.best is None and new:
                self._look_at_most(new)
                continue
            batch = batch if self.best else batch[:1]
            for state, tried in zip(batch, self._try([(s, self._next(s)) for s in batch]), strict=True):
                self._learn(state, tried)

    def _look_at_most(self, states: list[State]) -> None:
        """Close families of which even the largest size misses in the first part of a run."""
        first = stage_settings(self.it)
        for state in states:
            state.looked_at = True
        states = [state for state in states if state.low < state.most]
        if first is None or not states:
            return
        settings = [{**state.family.settings(state.most), **first} for state in states]
        for state, rows in zip(states, self._rows(settings, 1), strict=True):
            reason = hopeless(rows[0], self.targets, first["workload.limit"])
            if reason:
                point = summarised(rows, self.targets, self.two_sided)
                state.tried[state.most] = Tried(state.family, state.most, rows, point, reason)
                state.closed = f"misses with {state.most} units, the most"
                self.campaign.counts.pruned += 1

    def _bounded(self) -> list[State]:
        trace = build_trace(changed(self.it, {}))
        work, parts = workload_of(self.it, trace), Parts()
        self._require_gpus(parts)
        all_families = families(self.it, self.spec)
        dropped = self._dropped(all_families)
        states = []
        for family in all_families:
            found = dropped.get(family.index) or bound(self.it, family, parts, work, self.targets)
            at_most = self.spec.catalogue[family.choices["gpu"]].at_most
            most = self.spec.replicas if at_most is None else min(self.spec.replicas, at_most // family.gpus)
            if not found.impossible and found.units > most:
                some = f"{most} units are the most" if most else f"only {at_most} GPUs can be had"
                reason = found.reason if most else f"one unit takes {family.gpus} GPUs"
                found = found._replace(impossible=f"{reason}, and {some}")
            states.append(
                State(family, found, most, low=max(found.units, 1), closed=found.impossible and "impossible")
            )
        return states

    def _require_gpus(self, parts: Parts) -> None:
        """Refuse a GPU that nobody knows: that is a slip of the pen, not a deployment that does not fit."""
        folders = parts.of(changed(self.it, {}))[1].folders
        for name in self.spec.catalogue:
            with self.it.blame("size", "catalogue", name):
                load_gpu(name, folders)

    def _dropped(self, found: list[Family]) -> dict[int, Bound]:
        """Return the families that a condition drops."""
        if not self.spec.where:
            return {}
        settings = [family.settings(1) for family in found]
        points = constrained(self.it, settings, self.spec.where, "size")
        return {point.index: Bound(0, "", point.reason) for point in points if point.reason}

    def _least_price(self, state: State) -> float:
        return state.low * state.family.price_per_hour

    def _close_dear_ones(self) -> None:
        """Close families of which even the least possible size costs no less than the best."""
        for state in self.states:
            if state.closed:
                continue
            if state.low > state.most:
                state.closed = f"misses with {state.most} units, the most"
            elif state.high is not None and state.low >= state.high:
                state.closed = "done"
            elif self.best and self._least_price(state) >= self.best.price_per_hour:
                least = money(self._least_price(state), self.campaign.it.scenario.currency)
                state.closed = f"at least {least}/h, no less than the best"

    def _next(self, state: State) -> int:
        """Return the size to try: the last that would still be cheaper, then between; upwards at first."""
        if state.high is not None:
            return (state.low + state.high) // 2
        if self.best is None:
            return state.low if not state.tried else min(2 * max(state.tried), state.most)
        cheaper = state.most
        while cheaper > state.low and cheaper * state.family.price_per_hour >= self.best.price_per_hour:
            cheaper -= 1
        return cheaper

    def _learn(self, state: State, tried: Tried) -> None:
        state.tried[tried.units] = tried
        if tried.met:
            state.high = tried.units
            if self.best is None or tried.price_per_hour < self.best.price_per_hour:
                self.best = tried
                price = money(tried.price_per_hour, self.campaign.it.scenario.currency)
                self.campaign.counts.best = f"{price}/h: {tried.units} x {tried.family.words}"
        else:
            state.low = tried.units + 1
        self.campaign.show()

    def _try(self, wanted: list[tuple[State, int]]) -> list[Tried]:
        """Simulate deployments: first their first quarter, then the rest of those that may do."""
        settings = [state.family.settings(units) for state, units in wanted]
        first = stage_settings(self.it)
        stopped: dict[int, tuple[str, list[Row]]] = {}
        if first is not None:
            for i, rows in enumerate(self._rows([{**one, **first} for one in settings], 1)):
                reason = hopeless(rows[0], self.targets, first["workload.limit"])
                if reason:
                    stopped[i] = (reason, rows)
                    self.campaign.counts.pruned += 1
        rest = [i for i in range(len(wanted)) if i not in stopped]
        full = dict(zip(rest, self._full([settings[i] for i in rest]), strict=True))
        found = []
        for i, (state, units) in enumerate(wanted):
            reason, rows = stopped.get(i, ("", full.get(i, [])))
            point = summarised(rows, self.targets, self.two_sided)
            found.append(Tried(state.family, units, rows, point, reason))
        return found

    def _full(self, settings: list[dict[str, Any]]) -> list[list[Row]]:
        """Return the rows of whole runs; where the first replication is clear, there are no others."""
        rows = self._long_enough(settings, 1)
        more = self.spec.replications - 1
        if not more:
            return rows
        verdicts = [summarised(one, self.targets, CLEAR)["slo"] for one in rows]
        undecided = [i for i, word in enumerate(verdicts) if word == INCONCLUSIVE]
        added = self._long_enough([settings[i] for i in undecided], more, 1)
        for i, others in zip(undecided, added, strict=True):
            rows[i] = list(distinct([*rows[i], *others]))
        return rows

    def _long_enough(
        self, settings: list[dict[str, Any]], replications: int, first: int = 0
    ) -> list[list[Row]]:
        """Return the rows of runs that can tell whether the load is carried.

        Raises `ScenarioError` if one cannot, and may meet the SLO.
        """
        longest = self.spec.longest
        groups = run_long_enough(self.campaign, settings, replications, longest, self._misses, first)
        for group in groups:
            if summarised(group.rows, self.targets, self.two_sided)["slo"] == TOO_SHORT:
                place = self.it.document.where(("workload",))
                raise ScenarioError(missing_words(self.it, group, longest), place=place)
        return [group.rows for group in groups]

    def _misses(self, rows: Sequence[Row]) -> bool:
        return summarised(rows, self.targets, self.two_sided)["slo"] == "missed"

    def _rows(self, settings: list[dict[str, Any]], replications: int) -> list[list[Row]]:
        """Return the rows of runs as long as the settings say."""
        tasks = [[self.campaign.task(one, r) for r in range(replications)] for one in settings]
        outcomes = self.campaign.run([task for group in tasks for task in group])
        return [
            Group(one, [outcomes[task.key] for task in group]).rows
            for one, group in zip(settings, tasks, strict=True)
        ]


# What a search for the cheapest deployment leaves: what meets the SLO, by price, what misses, the rest.

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
        "because": state.bound.impossible,
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
