"""What several runs with other seeds say together: means with Student's interval, and paired differences.

Runs of one seed see the same random numbers under every variant, so differences are taken seed by seed
(common random numbers; Law, Simulation Modeling and Analysis, 11.2).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import numpy as np
import pyarrow as pa

from simserve import arrow
from simserve.core import Result
from simserve.metrics.distribution import mean_interval, t_quantile
from simserve.metrics.measures import figures_of
from simserve.metrics.slo_verdict import Evidence
from simserve.metrics.stability import UNSTABLE
from simserve.metrics.tables import gap_table, request_table, timeline_table
from simserve.metrics.time_series import Float64, course, edges_of, has_status, places
from simserve.units import NS_PER_MS, NS_PER_S

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


# Curves of several runs with other seeds together: their mean and Student's interval at every place.
#
# A place is a latency in ms, where the curve is the share of the values up to it, or a time in s (of a
# series,
# see `course`). Intervals are for each place by itself, not for the curve as a whole, and end where the
# quantity does: a share is between 0 and 1, and nothing here is below 0.

LATENCIES = ("ttft_ms", "tpot_ms", "e2e_ms")
ITL = "itl_ms"

_BODY = np.linspace(0, 0.98, 197)
_TAIL = 1 - np.geomspace(0.02, 1e-5, 60)
QUANTILES = np.unique(np.concatenate([_BODY, _TAIL, [1.0]]))
"""Shares at which a distribution is kept: denser in the upper tail."""

BINS = 100
"""Bins of series over several seeds: fewer than for one run, so that each holds enough of it."""


def whole_edges(summary: Mapping[str, Any], bins: int = BINS) -> Float64 | None:
    """Return the ends of equal bins over a run (its summary as plain dicts); None if nothing arrived."""
    whole = summary["whole"]
    if whole["start_s"] is None:
        return None
    return edges_of(round(whole["start_s"] * NS_PER_S), round(whole["end_s"] * NS_PER_S), bins)


def curves_of(result: Result, edges: Float64) -> dict[str, Float64]:
    """Return the curves of one run by name; those of distributions that have no values are left out."""
    requests = request_table(result, None)
    done = has_status(requests, "completed")
    curves = {name: _quantiles(arrow.floats(requests[name])[done]) for name in LATENCIES}
    gaps = gap_table(result.gaps, result.steady_gaps)
    whole = arrow.equals(gaps["window"], "whole")
    gap_ms = arrow.floats(gaps["gap_ns"])[whole] / NS_PER_MS
    curves[ITL] = _weighted(gap_ms, arrow.numbers(gaps["count"], 0)[whole])
    series = course(requests, timeline_table(result.replicas), places(result.replicas), edges, int(edges[-1]))
    return {name: curve for name, curve in curves.items() if curve.size} | series


def band_table(runs: Sequence[Mapping[str, Float64]], edges: Float64, confidence: float) -> pa.Table:
    """Return mean, low and high of every curve that all runs have, a row per place.

    Null where one run has no value.
    """
    times_s = (edges[:-1] + edges[1:]) / 2 / NS_PER_S
    columns: dict[str, list[Any]] = {name: [] for name in ("curve", "place", "mean", "low", "high")}
    for name in [name for name in runs[0] if all(name in run for run in runs)]:
        latency, values = name in (*LATENCIES, ITL), [run[name] for run in runs]
        place, values = _shares(values) if latency else (times_s, values)
        mean, low, high = _interval(np.array(values), confidence)
        share = latency or name.startswith(("hit_rate", "kv_"))
        columns["curve"] += [name] * len(place)
        columns["place"].append(place)
        columns["mean"].append(mean)
        columns["low"].append(np.maximum(low, 0.0))
        columns["high"].append(np.minimum(high, 1.0) if share else high)
    arrays: dict[str, pa.Array] = {"curve": pa.array(columns.pop("curve")).dictionary_encode()}
    arrays |= {name: pa.array(np.concatenate(parts), from_pandas=True) for name, parts in columns.items()}
    return pa.table(arrays)


def _interval(values: Float64, confidence: float) -> tuple[Float64, Float64, Float64]:
    """Return mean, low and high over the runs of float64[runs, places]."""
    runs = len(values)
    mean = values.mean(axis=0)
    half = t_quantile((1 + confidence) / 2, runs - 1) / np.sqrt(runs) * values.std(axis=0, ddof=1)
    return mean, mean - half, mean + half


def _shares(quantiles: Sequence[Float64]) -> tuple[Float64, list[Float64]]:
    """Return places, the quantiles of all runs together, and the share of each run's values up to them."""
    place = np.unique(np.quantile(np.concatenate(quantiles), QUANTILES))
    return place, [np.interp(place, one, QUANTILES, left=0.0, right=1.0) for one in quantiles]


def _quantiles(values: np.ndarray) -> Float64:
    values = values.astype(np.float64)
    present = values[~np.isnan(values)]
    return np.quantile(present, QUANTILES) if present.size else present


def _weighted(values: Float64, counts: np.ndarray) -> Float64:
    """Return the quantiles of a histogram: the middle of the bin that holds each share."""
    if not counts.sum():
        return np.empty(0)
    shares = np.cumsum(counts) / counts.sum()
    return values[np.minimum(np.searchsorted(shares, QUANTILES), len(shares) - 1)]
