"""A scenario simulated with all its variants and seeds, in memory or into a result folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from pyarrow import Table

from simserve.core import Result
from simserve.core.totals import Steps
from simserve.deploy.build import Deployment, Parts, build
from simserve.deploy.manifest import manifest_of, resolved_yaml
from simserve.deploy.workload import depends_on_seed
from simserve.metrics import Summary
from simserve.metrics.comparison import write_comparison
from simserve.metrics.rates import Advice
from simserve.metrics.replications import (
    CONFIDENCE,
    Replication,
    band_table,
    curves_of,
    replication,
    together,
    whole_edges,
)
from simserve.metrics.slo_verdict import evidence, judge_slo
from simserve.metrics.store import VARIANTS, StoredRun, canonical_json, staged, write_run
from simserve.metrics.tables import gap_table, request_table, timeline_table
from simserve.metrics.targets import targets_of
from simserve.scenario.load import changed
from simserve.sim.step_log import StepLog, Window

# The same deployment under another seed: what `replications` runs.


def seeds_of(seed: int, n: int) -> list[int]:
    """Return the seeds of n replications, the scenario's own first (as studies count them)."""
    return list(range(seed, seed + n))


def reseeded(deployment: Deployment, seed: int, parts: Parts) -> Deployment:
    """Return the deployment with another seed; a workload without anything random stays the same object."""
    it = changed(deployment.loaded, {"seed": seed})
    return build(it, None if depends_on_seed(it.scenario.workload) else deployment.trace, parts)


class RunProgress(Protocol):
    """Hears of one run after another."""

    def begin(self, name: str) -> None:
        """The next calls are about the run called `name` (empty: the only one)."""
        ...

    def __call__(self, now_ns: int, done: int, total: int) -> None:
        """Simulated time, requests done, requests in all."""
        ...


Advise = Callable[[Deployment, Summary, RunProgress | None], list[Advice]]
"""Finds what would help a deployment after its run (see `study.advice`)."""


@dataclass(frozen=True)
class Simulated:
    """One run with what its other seeds add."""

    deployment: Deployment
    result: Result
    summary: Summary
    bands: Table | None
    """Curves over the seeds; None for a single one, or where no seed changes anything."""
    steps: Steps | None
    """Every engine step, if asked for."""

    def stored(self, command: str = "") -> StoredRun:
        """Return the run as one that was read from a folder, which it has none of."""
        tables = {
            "requests": request_table(self.result, self.deployment.slo),
            "timeline": timeline_table(self.result.replicas),
            "gaps": gap_table(self.result.gaps, self.result.steady_gaps),
        }
        plain = (self.summary.to_dict(), manifest_of(self.deployment, command))
        summary, manifest = (json.loads(canonical_json(one)) for one in plain)  # as files hold them
        return StoredRun(Path(), summary, manifest, resolved_yaml(self.deployment), tables)


def simulate_all(
    deployments: Mapping[str, Deployment],
    progress: RunProgress | None = None,
    window: tuple[int, int] | None = None,
    advise: Advise | None = None,
) -> Iterator[tuple[str, Simulated]]:
    """Simulate a scenario and its variants, the base first; `window` (ns) records the steps in it.

    `advise` finds what would help after each run; it changes none of the run's own numbers.
    """
    scenario = next(iter(deployments.values())).loaded.scenario
    seeds = seeds_of(scenario.seed, scenario.replications)  # variants have none of their own
    for name, deployment in deployments.items():
        shown = name if len(deployments) > 1 else ""
        if progress:
            progress.begin(shown)
        log = StepLog(Window(*window)) if window else None
        result = deployment.simulate(progress, log)
        summary, bands = _replicated(deployment, result, seeds, progress, shown)
        if advise:
            summary = replace(summary, advice=advise(deployment, summary, progress))
        yield name, Simulated(deployment, result, summary, bands, log.result() if log else None)


def write_all(
    deployments: Mapping[str, Deployment],
    folder: Path,
    force: bool,
    command: str,
    progress: RunProgress | None = None,
    window: tuple[int, int] | None = None,
    advise: Advise | None = None,
) -> dict[str, Summary]:
    """Simulate a scenario and its variants into a result folder, whole or not at all; see `simulate_all`."""
    from simserve.report import write_report

    base, *variants = deployments
    summaries = {}
    with staged(folder, force) as staging:
        for name, done in simulate_all(deployments, progress, window, advise):
            into = staging if name == base else staging / VARIANTS / name
            into.mkdir(parents=True, exist_ok=True)
            others = {one: deployments[one] for one in variants} if name == base else None
            write_run(
                into,
                done.result,
                done.summary,
                resolved_yaml(done.deployment, others),
                manifest_of(done.deployment, command),
                done.deployment.slo,
                steps=done.steps,
                bands=done.bands,
            )
            summaries[name] = done.summary
        if variants:
            write_comparison(staging, base, variants)
        write_report(staging)
    return summaries


def _replicated(
    deployment: Deployment, result: Result, seeds: list[int], progress: RunProgress | None, name: str
) -> tuple[Summary, Table | None]:
    """Return the summary of a run, with what the other seeds add, and the bands of its curves over them.

    Of the other runs nothing else is kept.
    """
    summary, parts, targets = deployment.summarize(result), Parts(), targets_of(deployment.slo)
    if len(seeds) == 1:
        return summary, None

    def kept(seed: int, found: Result, its: Summary) -> Replication:
        return replication(seed, found, its.to_dict(), evidence(found, targets, its.stability))

    edges, runs = whole_edges(summary.to_dict()), [kept(seeds[0], result, summary)]
    curves = [] if edges is None else [curves_of(result, edges)]
    for seed in seeds[1:]:
        if progress:
            progress.begin(f"{name} seed {seed}".strip())
        other = reseeded(deployment, seed, parts)
        found = other.simulate(progress)
        runs.append(kept(seed, found, other.summarize(found)))
        if edges is not None:
            curves.append(curves_of(found, edges))
    all_seeds = together(runs)
    bands = None if edges is None or not all_seeds.random else band_table(curves, edges, CONFIDENCE)
    judged = judge_slo(targets, [run.evidence for run in (runs if all_seeds.random else runs[:1])])
    return replace(summary, replications=all_seeds, slo_verdict=judged), bands
