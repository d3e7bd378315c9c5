"""Curves of several runs with other seeds together: their mean and Student's interval at every place.

A place is a latency in ms, where the curve is the share of the values up to it, or a time in s (of a series,
see `course`). Intervals are for each place by itself, not for the curve as a whole, and end where the
quantity does: a share is between 0 and 1, and nothing here is below 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from simserve import arrow
from simserve.core import Result
from simserve.metrics.course import Float64, course, edges_of, has_status, places
from simserve.metrics.statistics import t_quantile
from simserve.metrics.tables import gap_table, request_table, timeline_table
from simserve.units import NS_PER_MS, NS_PER_S

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
