"""The highest load that a deployment carries within its SLO, and between which loads it lies.

The share of good requests falls as the load grows, and is known at each load only with noise. At every load
the same seeds are run (the same requests, closer together), so the noise moves all loads alike. A load is
carried for certain if the lower bound of every target meets it, and too much for certain if the upper bound
of one misses it. Bisection finds where each of the three stops holding: the lower bound, the estimate, the
upper bound. As the interval of the share holds the true share with some confidence, [first, last] holds the
true capacity with the same. A load whose run is too short to tell is made longer (see `long_enough`).

Just below the load at which work piles up, a run carries what a longer one does not: an overload of a share e
leaves e * n requests waiting, which chance explains up to CHANCE * sqrt(n). So a load next to one that is not
carried is run with at least (CHANCE / precision) ** 2 requests before it counts as carried.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from simserve.core import Trace
from simserve.deploy.build import slo_of
from simserve.deploy.workload import build_trace
from simserve.errors import ScenarioError
from simserve.metrics.stability import CHANCE, UNSTABLE
from simserve.metrics.targets import Judged, Target, judge, requests_needed, targets_of
from simserve.scenario.load import LoadedScenario, changed
from simserve.scenario.study_spec import CapacitySpec
from simserve.study.campaign import Campaign, facts_of
from simserve.study.files import Row
from simserve.study.long_enough import Group, missing_words, run_long_enough, too_short, with_requests
from simserve.study.points import distinct, summarised, verdict
from simserve.units import NS_PER_S

Level = Literal["low", "estimate", "high"]
LEVELS: tuple[Level, ...] = ("low", "estimate", "high")
MAX_STEPS = 60
PARTED = 5
"""Halvings that each level does on its own [assumption, for the time to go alone]."""
UNITS = {"rate": "requests/s", "concurrency": "clients", "users": "users"}


class Found(NamedTuple):
    """Loads at which the lower bound, the estimate and the upper bound stop meeting the SLO."""

    low: float | None
    """Carried with the stated confidence; None: not even the lowest load is."""
    estimate: float | None
    high: float | None
    """From here on too much, with the stated confidence; infinite if the highest load is not known to be."""


Runs = Callable[[Sequence[float]], list[list[Row]]]
"""From loads to the rows of all replications at each."""


def holds(judged: Sequence[Judged], rows: Sequence[Row], level: Level) -> bool:
    """Return whether a load counts as carried at a level of caution."""
    unstable = sum(row["stability"] == UNSTABLE for row in rows)
    if unstable > (0 if level == "low" else len(rows) // 2) or any(too_short(row) for row in rows):
        return False
    for one in judged:
        if one.interval is None:
            return False
        value = getattr(one.interval, level)
        if value is None or value < one.target.share:
            return False
    return True


class Search:
    """Bisection on a noisy, falling function; each load is run once."""

    def __init__(
        self,
        runs: Runs,
        targets: Sequence[Target],
        confidence: float,
        precision: float,
        whole: bool = False,
        ahead: Callable[[int], None] = lambda loads: None,
        longer: Runs | None = None,
    ) -> None:
        """`whole`: loads are whole numbers. `precision` is relative. `ahead` hears how many may follow.

        `longer` runs loads that are next to an overload with enough requests to tell.
        """
        self._longer = longer
        self._confirmed: set[float] = set()
        self._runs = runs
        self._ahead = ahead
        self._targets = targets
        self._confidence = confidence
        self._precision = precision
        self._whole = whole
        self.rows: dict[float, list[Row]] = {}
        self._held: dict[float, dict[Level, bool]] = {}

    def look(self, loads: Sequence[float]) -> None:
        """Run the loads that have not been run."""
        new = [load for load in dict.fromkeys(loads) if load not in self.rows]
        for load, rows in zip(new, self._runs(new) if new else [], strict=True):
            self.rows[load] = rows

    def carried(self, load: float, level: Level) -> bool:
        """Return whether a load that was run is carried at a level of caution."""
        if load not in self._held:
            rows = distinct(self.rows[load])
            judged = judge(self._targets, [row["slo"] for row in rows], self._confidence)
            self._held[load] = {one: holds(judged, rows, one) for one in LEVELS}
        return self._held[load][level]

    def find(self, low: float, high: float) -> Found:
        """Return the capacity between two loads."""
        low, high = self._rounded(low), self._rounded(high)
        self._ahead(self._likely([(low, high)] * len(LEVELS)))
        self.look([low, high])
        for _ in range(MAX_STEPS):
            # All three ends move at once: what one looks at narrows the others too.
            brackets = [self._bracket(level, low, high) for level in LEVELS]
            wanted = [self._between(*b) for b in brackets if b is not None and not self._close(*b)]
            if not wanted and not self._confirm(brackets):
                break
            self._ahead(self._likely(brackets) - len(set(wanted)))
            self.look(wanted)
        ends = [self._bracket(level, low, high) for level in LEVELS]
        return Found(
            self._end(ends[0], "low", low, high, upper=False),
            self._end(ends[1], "estimate", low, high, upper=False),
            self._end(ends[2], "high", low, high, upper=True),
        )

    def _confirm(self, brackets: Sequence[tuple[float, float] | None]) -> bool:
        """Run lower ends of brackets long enough, where work piles up at the upper; false if they were."""
        wanted = {one[0] for one in brackets if one is not None and _piles_up(self.rows[one[1]])}
        loads = sorted(wanted - self._confirmed)
        if self._longer is None or not loads:
            return False
        self._confirmed |= set(loads)
        for load, rows in zip(loads, self._longer(loads), strict=True):
            self.rows[load] = rows
            self._held.pop(load, None)
        return True

    def _bracket(self, level: Level, low: float, high: float) -> tuple[float, float] | None:
        """Return the neighbouring loads between which a level stops holding; None if there are none.

        Of several changes (noise) the lowest counts: beyond it nothing is carried for certain.
        """
        loads = sorted(load for load in self.rows if low <= load <= high)
        held = [self.carried(load, level) for load in loads]
        if level == "high":  # too much for certain: from there on at every load that was tried
            last = max((i for i, one in enumerate(held) if one), default=None)
            return None if last is None or last == len(loads) - 1 else (loads[last], loads[last + 1])
        first = held.index(False) if False in held else None
        return None if first is None or first == 0 else (loads[first - 1], loads[first])

    def _end(
        self, bracket: tuple[float, float] | None, level: Level, low: float, high: float, upper: bool
    ) -> float | None:
        if bracket is not None:
            return bracket[1] if upper else bracket[0]
        if self.carried(low, level):
            return math.inf if upper else high
        return low if upper else None

    def _close(self, below: float, above: float) -> bool:
        return above - below <= max(self._precision * above, 1 if self._whole else 0)

    def _likely(self, brackets: Sequence[tuple[float, float] | None]) -> int:
        """Return how many loads these brackets are likely to need; levels part in the last few halvings."""
        counts = Counter(bracket for bracket in brackets if bracket is not None)
        steps = {bracket: self._halvings(*bracket) for bracket in counts}
        return sum(steps[one] + (n - 1) * min(steps[one], PARTED) for one, n in counts.items())

    def _halvings(self, below: float, above: float) -> int:
        """Return how often an interval is halved until its ends are close."""
        close = max(self._precision * above, 1 if self._whole else 0)
        return max(0, math.ceil(math.log2(max(above - below, close) / close)))

    def _between(self, below: float, above: float) -> float:
        return self._rounded(math.sqrt(below * above) if above > 2 * below else (below + above) / 2)

    def _rounded(self, load: float) -> float:
        return float(round(load)) if self._whole else float(f"{load:.6g}")


def _piles_up(rows: Sequence[Row]) -> bool:
    """Return True if a load fails because it is not carried, or may not be."""
    return any(row["stability"] == UNSTABLE or too_short(row) for row in rows)


def require_capacity(it: LoadedScenario) -> CapacitySpec:
    """Return the capacity block of a scenario; raises `ScenarioError` for what cannot be answered."""
    spec = it.scenario.capacity
    if spec is None:
        raise ScenarioError(
            f"{it.document.source}: has no capacity; add one, such as capacity: {{of: rate, from: 1, to: 50}}"
        )
    if not targets_of(slo_of(it.scenario)):
        raise ScenarioError(
            f"{it.document.source}: capacity needs an slo to be held, such as slo: {{ttft_ms: 1000}}"
        )
    loop, place = it.scenario.workload.closed_loop, it.document.where(("capacity", "of"))
    if spec.of == "rate" and loop is not None:
        raise ScenarioError(
            "a closed loop has no rate; use of: concurrency, or of: users where users think", place=place
        )
    if spec.of == "users" and (loop is None or loop.users is None):
        raise ScenarioError(
            "users need a pause, such as workload: "
            "{closed_loop: {users: 100, think_s: {kind: exponential, mean: 30}}}",
            place=place,
        )
    if spec.of == "concurrency" and loop is not None and loop.users is not None:
        raise ScenarioError("the workload is one of users; use of: users", place=place)
    if spec.of != "rate" and spec.low < 1:
        raise ScenarioError(
            "", "capacity.from", spec.low, "1 client or more", it.document.place(("capacity", "from"))
        )
    return spec


def base_rate(it: LoadedScenario) -> float:
    """Return the requests per second of the workload as it is written, at rate_scale 1.

    A generated workload's is its long-run mean, not what a draw of it came to.
    """
    workload = it.scenario.workload
    if workload.synthetic is not None and workload.synthetic.sessions is None:
        arrivals = workload.synthetic.arrivals
        return getattr(arrivals, "mean_rate_per_s", None) or arrivals.rate_per_s
    trace = build_trace(changed(it, {"workload.rate_scale": 1.0}))
    return trace_rate(trace, it)


def trace_rate(trace: Trace, it: LoadedScenario) -> float:
    """Return the arrivals per second of a trace."""
    span_ns = int(trace.arrival_ns.max() - trace.arrival_ns.min())
    if span_ns <= 0:
        place = it.document.where(("capacity", "of"))
        raise ScenarioError("all requests arrive at one instant, so there is no rate to scale", place=place)
    return (len(trace) - 1) * NS_PER_S / span_ns


def run_capacity(campaign: Campaign, spec: CapacitySpec) -> dict[str, Any]:
    """Find the capacity and the saturation curve; return what study.json holds."""
    it = campaign.it
    targets = targets_of(slo_of(it.scenario))
    rate = base_rate(it) if spec.of == "rate" else 1.0

    def settings(load: float) -> dict[str, Any]:
        if spec.of != "rate":
            return {f"workload.closed_loop.{spec.of}": int(load)}
        return {"workload.rate_scale": float(f"{load / rate:.9g}")}

    best = [0.0]

    groups: dict[float, Group] = {}

    def misses(rows: Sequence[Row]) -> bool:
        return verdict(rows, targets, spec.confidence)["slo"] == "missed"

    def run(loads: Sequence[float], wanted: Sequence[dict[str, Any]]) -> list[list[Row]]:
        found = run_long_enough(campaign, wanted, spec.replications, spec.longest, misses)
        groups.update(zip(loads, found, strict=True))
        rows = [group.rows for group in found]
        carried = [load for load, one in zip(loads, rows, strict=True) if _met(one, targets, spec)]
        if carried and max(carried) > best[0]:
            best[0] = max(carried)
            campaign.counts.best = f"{best[0]:.4g} carried"
            campaign.show()
        return rows

    def runs(loads: Sequence[float]) -> list[list[Row]]:
        return run(loads, [settings(load) for load in loads])

    def longer(loads: Sequence[float]) -> list[list[Row]]:
        wanted = {}
        for load in loads:
            now = max(row["requests"] for row in groups[load].rows)
            grown = with_requests(it, groups[load].settings, now, min(telling(spec), spec.longest))
            if grown is not None:
                wanted[load] = grown
        run(list(wanted), list(wanted.values()))
        return [groups[load].rows for load in loads]

    def ahead(loads: int) -> None:
        campaign.counts.expected = loads * spec.replications

    search = Search(runs, targets, spec.confidence, spec.precision, spec.of != "rate", ahead, longer)
    if spec.curve:
        ahead(search._likely([(spec.low, spec.high)] * len(LEVELS)) + 2)
        search.look([search._rounded(load) for load in _spread(spec.low, spec.high, spec.curve)])
    found = search.find(spec.low, spec.high)
    points = [
        {
            "load": load,
            "settings": groups[load].settings,
            **summarised(search.rows[load], targets, spec.confidence),
            "limited_by": search.rows[load][0]["bottleneck"],  # how much fits is this study's answer
        }
        for load in sorted(search.rows)
    ]
    _require_told(it, points, groups, spec)
    return {
        "kind": "capacity",
        "schema": 1,
        **facts_of(it),
        "of": spec.of,
        "unit": UNITS[spec.of],
        "range": [spec.low, spec.high],
        "capacity": {
            "low": found.low,
            "estimate": found.estimate,
            "high": None if found.high == math.inf else found.high,
        },
        "confidence": spec.confidence,
        "precision": spec.precision,
        "replications": max(point["replications"] for point in points),
        "targets": [target.words for target in targets],
        "notes": [*_notes(points, targets, spec), *_too_few(points, found, spec)],
        "points": points,
    }


def telling(spec: CapacitySpec) -> int:
    """Return the requests that tell a load from one that is larger by the precision."""
    return math.ceil((CHANCE / spec.precision) ** 2)


def _require_told(
    it: LoadedScenario, points: list[dict[str, Any]], groups: Mapping[float, Group], spec: CapacitySpec
) -> None:
    """Refuse to answer if a run is too short to tell, unless a lower load is too much already."""
    missed = min((point["load"] for point in points if point["slo"] == "missed"), default=math.inf)
    short = next((p["load"] for p in points if p["slo"] == "too short" and p["load"] < missed), None)
    if short is not None:
        why = missing_words(it, groups[short], spec.longest)
        place = it.document.where(("workload",))
        raise ScenarioError(f"{short:g} {UNITS[spec.of]}: {why}", place=place)


def _met(rows: Sequence[Row], targets: Sequence[Target], spec: CapacitySpec) -> bool:
    rows = distinct(rows)
    return holds(judge(targets, [row["slo"] for row in rows], spec.confidence), rows, "low")


def _spread(low: float, high: float, n: int) -> list[float]:
    return [low + (high - low) * i / max(n - 1, 1) for i in range(n)]


def _notes(points: list[dict[str, Any]], targets: Sequence[Target], spec: CapacitySpec) -> list[str]:
    """Return what the reader must know before believing the interval."""
    notes = []
    requests = min(point["means"]["requests"] * point["replications"] for point in points) * 0.8
    for target in targets:
        needed = requests_needed(target.share, spec.confidence)
        if requests < needed:
            notes.append(
                f"{target.words}: needs {needed:,} requests in the steady windows of all runs to be shown "
                f"even if all are good, there are {requests:,.0f}; use more requests or replications"
            )
    if points and points[0]["replications"] < spec.replications:
        notes.append(
            f"nothing in the scenario depends on the seed, so {spec.replications} replications are one run; "
            "the interval rests on the scatter of batches within it"
        )
    return notes


def _too_few(points: list[dict[str, Any]], found: Found, spec: CapacitySpec) -> list[str]:
    """Return a note if the capacity may be more clients than there are requests: the others never ask."""
    requests = min(point["means"]["requests"] for point in points)
    if spec.of == "rate" or found.high is None or found.high <= requests:
        return []
    tried = max(point["load"] for point in points)
    if tried <= requests:
        return []
    return [
        f"up to {tried:,.0f} {UNITS[spec.of]} were tried with {requests:,.0f} requests, so some never asked "
        "and the capacity is not known beyond that; use more requests, several for each"
    ]
