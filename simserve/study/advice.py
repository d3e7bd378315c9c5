"""Changes that would relieve what limits a run, each simulated in short before it is given.

The first requests of the workload are simulated with the deployment as it is and with each change, under the
same seed; a change that gains less than a threshold is not given. All of it simulates fewer requests than the
run itself. A run that meets its SLO, or has none and carries its
load, is not advised.
"""

from __future__ import annotations

import json
from typing import Any

from simserve.errors import UserError
from simserve.metrics import Summary
from simserve.metrics.advice import GOODPUT, THROUGHPUT, Advice
from simserve.metrics.slo_verdict import MET
from simserve.metrics.stability import NOT_JUDGED, STABLE
from simserve.scenario.build import Deployment, Parts, build
from simserve.scenario.load import changed
from simserve.scenario.simulated import RunProgress
from simserve.scenario.workload import build_trace
from simserve.study.remedies import Remedy, remedies

HELPS = 0.05
"""Gain in goodput (or throughput) below which a change is not given [our choice]."""
MOST_CHANGES = 3
MOST_REQUESTS = 1000
"""Requests of each short run."""
PER_CHANGE = 1000
"""Requests of the run for each change that is tried: building it and its short run cost no more."""
PER_CLIENT = 5
"""Requests per client of a closed loop below which a short run is mostly its beginning [our choice]."""


def advise(deployment: Deployment, summary: Summary, progress: RunProgress | None = None) -> list[Advice]:
    """Return the changes that help, those that need no more GPUs first, then the largest gain."""
    found = remedies(deployment, summary) if _wanted(summary) else []
    requests = len(deployment.trace)
    changes = min(MOST_CHANGES, len(found), requests // PER_CHANGE)
    if changes < 1:
        return []
    short = min(MOST_REQUESTS, requests // (changes + 2))
    loop = deployment.loaded.scenario.workload.closed_loop
    if loop is not None and short < PER_CLIENT * loop.clients:
        return []
    trials = _Trials(deployment, short, progress)
    before = trials.run("as it is", {})
    checked: list[Advice] = []
    for remedy in found:
        if trials.done > changes:
            break
        try:
            after = trials.run(remedy.words, remedy.settings)
        except UserError:  # it does not fit, or the engine refuses it
            continue
        checked.append(_advice(remedy, before, after, short))
    own = sum(use.gpus for use in summary.pools)
    helpful = [one for one in checked if one.effect >= HELPS]
    return sorted(helpful, key=lambda one: (one.gpus > own, -one.effect))


def _wanted(summary: Summary) -> bool:
    """Return whether the run leaves anything to wish for."""
    if summary.slo_verdict is not None:
        return summary.slo_verdict.outcome != MET
    return not _carried(summary)


class _Trials:
    """Short runs of a deployment with some values changed."""

    def __init__(self, deployment: Deployment, requests: int, progress: RunProgress | None) -> None:
        self._it = changed(deployment.loaded, {"workload.limit": requests, "replications": 1})
        self._trace = build_trace(self._it)
        self._parts = Parts()
        self._progress = progress
        self.done = 0

    def run(self, words: str, settings: dict[str, Any]) -> Summary:
        """Simulate one; raises `UserError` if it cannot be built."""
        deployment = build(changed(self._it, settings), self._trace, self._parts)
        if self._progress:
            self._progress.begin(f"checking {words}")
        self.done += 1
        return deployment.summarize(deployment.simulate(self._progress))


def _advice(remedy: Remedy, before: Summary, after: Summary, requests: int) -> Advice:
    measure = GOODPUT if _carried(before) and before.rates.goodput_requests_per_s is not None else THROUGHPUT
    old, new = (_rate(one, measure) for one in (before, after))
    gpus = [sum(use.gpus for use in one.pools) for one in (before, after)]
    return Advice(
        remedy.words + (f", {gpus[1]} GPUs instead of {gpus[0]}" if gpus[1] != gpus[0] else ""),
        [f"{path}={_yaml(value)}" for path, value in remedy.settings.items()],
        measure,
        old,
        new,
        new / old - 1.0 if old else 0.0,
        gpus[1],
        requests,
        carries=_carried(after) and not _carried(before),
    )


def _carried(summary: Summary) -> bool:
    """Return whether the load was carried: if not, how many were good depends on how long the run was."""
    return summary.stability.verdict in (STABLE, NOT_JUDGED)


def _rate(summary: Summary, measure: str) -> float:
    """Return good requests per second of the steady window, or all per second of the whole run.

    Throughput is compared where a queue grows: then the server is full from its first minute to its last, and
    what completes inside a window depends on how long its requests take.
    """
    if measure == GOODPUT:
        return summary.rates.goodput_requests_per_s or 0.0
    return summary.whole.requests_per_s or 0.0


def _yaml(value: Any) -> str:
    """Return a value as `--set` reads it."""
    return value if isinstance(value, str) else json.dumps(value)
