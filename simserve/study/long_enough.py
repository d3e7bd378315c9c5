"""Runs that are made longer until they can tell whether a load is carried.

A run whose arrivals last no longer than its requests carries any load (see `metrics.stability`). A generated
workload is made longer, its first requests unchanged; of a trace, as much more is taken as `limit` left out.
Each time it is doubled, until the run is long enough, or is known to miss its targets anyway (the requests of
a longer run only come on top), or as long as the study allows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from simserve.deploy.workload import build_trace
from simserve.errors import ScenarioError
from simserve.metrics.targets import MARGIN, Target
from simserve.scenario.load import LoadedScenario, changed
from simserve.study.campaign import Campaign
from simserve.study.executors.base import Bench, Outcome
from simserve.study.files import Row

# Runs that stop early: the first part of the requests, and whether it settles the matter.
#
# Requests that come later can only get in the way of earlier ones, so a run of the first part has no more
# misses among them than the whole run would have [assumption]. If these are already more than the target
# allows, the whole run misses it.

PART = 0.25
"""Share of the requests that the first part holds."""
LEAST = 200
"""Requests from which on a first part is worth its time."""


def stage_settings(it: LoadedScenario) -> dict[str, Any] | None:
    """Return the changes that make a run its first part; None where that would be another workload."""
    workload = it.scenario.workload
    if workload.closed_loop is not None:
        return None
    trace = Bench(it).trace(it)
    if trace.session is not None or len(trace) < LEAST:
        return None
    return {"workload.limit": int(len(trace) * PART)}


def hopeless(row: Row, targets: Sequence[Target], requests: int) -> str:
    """Return why the whole run would miss, judged by its first part of so many requests; else nothing."""
    whole = requests / PART
    for target in targets:
        found = row["slo_ordered"].get(target.name)
        if not found:
            continue
        # Batches that lie wholly inside the steady window of the whole run.
        start, misses = 0, 0
        for n, good in found:
            if start >= MARGIN * whole:
                misses += n - good
            start += n
        allowed = (1 - target.share) * (1 - 2 * MARGIN) * whole
        if misses > allowed + 1:
            return (
                f"stopped early: {misses:,} of the first {requests:,} requests miss {target.words}; "
                f"the target allows {allowed:,.0f} in the whole run"
            )
    return ""


Settings = dict[str, Any]
Settled = Callable[[Sequence[Row]], bool]
"""Whether a point misses its targets for certain, so that it need not be longer."""


class Group(NamedTuple):
    """The runs of one point: replications from `first` on, as long as they were made."""

    settings: Settings
    outcomes: list[Outcome]

    @property
    def rows(self) -> list[Row]:
        """The rows; raises `ScenarioError` if a run was not possible."""
        refused = next((one.reason for one in self.outcomes if one.row is None), None)
        if refused is not None:
            raise ScenarioError(refused)
        return [one.row for one in self.outcomes if one.row is not None]


def run_long_enough(
    campaign: Campaign,
    points: Sequence[Settings],
    replications: int,
    longest: int,
    settled: Settled,
    first: int = 0,
) -> list[Group]:
    """Run points, and those again that are too short to tell, twice as long each time.

    At most `longest` requests; a point that still is too short then is returned as it is.
    """
    groups = _run(campaign, points, replications, first)
    while True:
        longer = {
            i: settings
            for i, group in enumerate(groups)
            if _wants_more(group, settled)
            and (settings := lengthened(campaign.it, points[i], group, longest)) is not None
        }
        if not longer:
            return groups
        for i, group in zip(longer, _run(campaign, list(longer.values()), replications, first), strict=True):
            groups[i] = group


def too_short(row: Row) -> bool:
    """Return True if a run cannot tell whether its load is carried, but a longer one might."""
    return row.get("needed_requests") is not None


def missing_words(it: LoadedScenario, group: Group, longest: int) -> str:
    """Return how much longer a run would have to be, and why it is not."""
    row = next(row for row in group.rows if too_short(row))
    scenario = changed(it, group.settings).scenario
    if row["requests"] >= longest:
        why = f"`longest` allows {longest:,}"
    elif scenario.workload.trace is not None:
        why = "the trace has no more"
    else:
        why = "the workload gives no more"
    return (
        f"too short to tell: {row['requests']:,} requests arrive within {row['arrival_period_s']:,.4g} s; "
        f"about {row['needed_requests']:,} ({row['needed_s']:,.4g} s) would tell, and {why}"
    )


def lengthened(it: LoadedScenario, point: Settings, group: Group, longest: int) -> Settings | None:
    """Return the settings of a point with twice the requests of its last runs; None if there are no more."""
    now = max(row["requests"] for row in group.rows)
    return with_requests(it, point, now, min(2 * now, longest))


def with_requests(it: LoadedScenario, point: Settings, now: int, wanted: int) -> Settings | None:
    """Return the settings of a point that has `now` requests with as many as wanted, or all that there are.

    None if it has them already, or there are no more. The first `now` requests stay the same.
    """
    if wanted <= now:
        return None
    workload = changed(it, point).scenario.workload
    limit = {} if workload.limit is None else {"workload.limit": wanted}
    if workload.synthetic is None:
        whole = len(build_trace(changed(it, {**point, "workload.limit": None})))
        return {**point, **limit} if limit and now < whole else None
    own = len(build_trace(changed(it, {**point, "workload.limit": None})))
    if limit and wanted <= own:
        return {**point, **limit}
    name = "requests" if workload.synthetic.requests is not None else "duration_s"
    base = workload.synthetic.grown_from or getattr(workload.synthetic, name)
    grown = getattr(workload.synthetic, name) * wanted / own
    return {
        **point,
        **limit,
        f"workload.synthetic.{name}": round(grown) if name == "requests" else grown,
        "workload.synthetic.grown_from": base,
    }


def _wants_more(group: Group, settled: Settled) -> bool:
    if any(one.row is None for one in group.outcomes) or not any(too_short(row) for row in group.rows):
        return False
    return not settled(group.rows)


def _run(campaign: Campaign, points: Sequence[Settings], replications: int, first: int) -> list[Group]:
    tasks = [[campaign.task(point, first + r) for r in range(replications)] for point in points]
    outcomes = campaign.run([task for group in tasks for task in group])
    return [
        Group(point, [outcomes[task.key] for task in group])
        for point, group in zip(points, tasks, strict=True)
    ]
