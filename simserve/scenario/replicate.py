"""The same deployment under another seed: what `replications` runs."""

from __future__ import annotations

from simserve.scenario.build import Deployment, Parts, build
from simserve.scenario.load import changed
from simserve.scenario.workload import depends_on_seed


def seeds_of(seed: int, n: int) -> list[int]:
    """Return the seeds of n replications, the scenario's own first (as studies count them)."""
    return list(range(seed, seed + n))


def reseeded(deployment: Deployment, seed: int, parts: Parts) -> Deployment:
    """Return the deployment with another seed; a workload without anything random stays the same object."""
    it = changed(deployment.loaded, {"seed": seed})
    return build(it, None if depends_on_seed(it.scenario.workload) else deployment.trace, parts)
