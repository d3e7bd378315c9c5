"""What several runs with other seeds say together: means with Student's interval, and paired differences.

Runs of one seed see the same random numbers under every variant, so differences are taken seed by seed
(common random numbers; Law, Simulation Modeling and Analysis, 11.2).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from simserve.core import Result
from simserve.metrics.measures import figures_of
from simserve.metrics.slo_verdict import Evidence
from simserve.metrics.stability import UNSTABLE
from simserve.metrics.statistics import mean_interval

CONFIDENCE = 0.95
PARTS = ("counts", "whole", "steady", "rates", "deployment", "cost_per_million_output_tokens")
"""Parts of a run's figures whose numbers are averaged."""
SHARES = frozenset({"attainment", "itl_within_share", "hit_rate", "kv_use_mean", "kv_use_peak", "busy"})
"""Last parts of the keys of quantities that are at most 1."""
_STAMPS = ("arrival_ns", "first_scheduled_ns", "first_token_ns", "last_token_ns", "status", "replica")


@dataclass(frozen=True)
class Estimate:
    """One number over all runs."""

    values: tuple[float, ...]
    """By run, in the order of the seeds."""
    mean: float
    low: float | None
    """Ends of the interval of the mean; None where the runs do not scatter."""
    high: float | None


@dataclass(frozen=True)
class Replications:
    """The `replications` block of summary.json. The first seed is that of the stored run."""

    n: int
    seeds: tuple[int, ...]
    confidence: float
    random: bool
    """False if all runs were equal to the nanosecond: nothing in the scenario depends on the seed."""
    unstable: int
    """Runs whose queue grew until the end."""
    measures: dict[str, Estimate]
    """By dotted key of summary.json; numbers that some run lacks are left out."""


@dataclass(frozen=True)
class Replication:
    """One run, as far as it is kept."""

    seed: int
    figures: Mapping[str, float]
    fingerprint: str
    unstable: bool
    evidence: Evidence
    """What it says about the SLO."""


def replication(seed: int, result: Result, summary: Mapping[str, Any], evidence: Evidence) -> Replication:
    """Return what is kept of a run; `summary` is its summary as plain dicts."""
    figures = figures_of(dict(summary), {})
    numbers = dict(pair for part in PARTS for pair in _leaves(part, figures[part]))
    unstable = summary["stability"]["verdict"] == UNSTABLE
    return Replication(seed, numbers, _fingerprint(result), unstable, evidence)


def together(runs: Sequence[Replication]) -> Replications:
    """Return what the runs say together; there are at least two."""
    random = len({run.fingerprint for run in runs}) > 1
    shared = [key for key in runs[0].figures if all(key in run.figures for run in runs)]
    return Replications(
        n=len(runs),
        seeds=tuple(run.seed for run in runs),
        confidence=CONFIDENCE,
        random=random,
        unstable=sum(run.unstable for run in runs),
        measures={key: _possible(key, [run.figures[key] for run in runs]) for key in shared},
    )


def estimate(values: Sequence[float]) -> Estimate:
    """Return the mean of independent values, with an interval if they scatter."""
    if len(set(values)) == 1:
        return Estimate(tuple(values), values[0], None, None)
    return Estimate(tuple(values), *mean_interval(values, CONFIDENCE))


def _possible(key: str, values: Sequence[float]) -> Estimate:
    """Return the estimate of a quantity that is never negative; a share's is at most 1, too.

    What cannot be is left out of the interval: the mean is not there either.
    """
    found = estimate(values)
    if found.low is None or found.high is None:
        return found
    high = min(found.high, 1.0) if key.rpartition(".")[2] in SHARES else found.high
    return replace(found, low=max(found.low, 0.0), high=high)


def pairs(base: Mapping[str, Any], variant: Mapping[str, Any]) -> bool:
    """Return True if two runs (their summaries) can be compared seed by seed, and something is random."""
    one, other = base.get("replications"), variant.get("replications")
    return bool(one and other and one["seeds"] == other["seeds"] and (one["random"] or other["random"]))


def paired_difference(base: Mapping[str, Any], variant: Mapping[str, Any], key: str) -> Estimate | None:
    """Return variant - base over the seeds; None if some run has no such number."""
    both = [one["replications"]["measures"].get(key) for one in (base, variant)]
    if None in both:
        return None
    reference, values = (one["values"] for one in both)
    return estimate([value - before for before, value in zip(reference, values, strict=True)])


def _leaves(key: str, node: Any) -> Iterator[tuple[str, float]]:
    """Return the numbers below a node by dotted key; limits are settings and not results."""
    if isinstance(node, Mapping):
        for name, inner in node.items():
            if name != "limits":
                yield from _leaves(f"{key}.{name}", inner)
    elif isinstance(node, int | float) and not isinstance(node, bool):
        yield key, node


def _fingerprint(result: Result) -> str:
    """Return a hash of what happened to every request, and when."""
    digest = sha256()
    for name in _STAMPS:
        digest.update(getattr(result, name).tobytes())
    return digest.hexdigest()
