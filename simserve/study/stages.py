"""Runs that stop early: the first part of the requests, and whether it settles the matter.

Requests that come later can only get in the way of earlier ones, so a run of the first part has no more
misses among them than the whole run would have [assumption]. If these are already more than the target
allows, the whole run misses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simserve.metrics.targets import MARGIN, Target
from simserve.scenario.load import LoadedScenario
from simserve.study.bench import Bench
from simserve.study.row import Row

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
