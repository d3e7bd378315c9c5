"""Latency distributions: cumulative curves with their percentiles marked and the SLO limit as a line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from simserve.metrics.replications import QUANTILES
from simserve.report.page import Figure
from simserve.report.stored import Band, Float64, area, equals, floats, short, stamps
from simserve.report.words import latency
from simserve.units import NS_PER_MS


class Curve(NamedTuple):
    """One cumulative curve."""

    label: str
    colour: str
    """A name of the page's palette, `$accent`."""
    key: str
    """Of the window's distribution in summary.json."""
    values: Float64
    shares: Float64
    band: Band | None = None
    """Over several seeds: then the curve is their mean."""


def over_seeds(curve: Curve, bands: Mapping[str, Band]) -> Curve:
    """Return the curve as the mean over the seeds, with its band; itself for a single run."""
    band = bands.get(curve.key)
    return curve if band is None else curve._replace(values=band.place, shares=band.mean, band=band)


def ecdf(values: Float64) -> tuple[Float64, Float64]:
    """Return (value, share of values not larger), at most some 250 points, denser in the upper tail."""
    present = np.sort(values[~np.isnan(values)])
    if present.size <= QUANTILES.size:
        return present, np.arange(1, present.size + 1) / max(present.size, 1)
    rank = np.ceil(QUANTILES * (present.size - 1)).astype(np.int64)
    return present[rank], (rank + 1) / present.size


def gap_ecdf_ms(gaps: pa.Table, window: str) -> tuple[Float64, Float64]:
    """Return the same for the pooled inter-token gaps of a window (`whole` or `steady`)."""
    mine = equals(gaps["window"], window)
    value, count = floats(gaps, "gap_ns")[mine] / NS_PER_MS, stamps(gaps, "count")[mine]
    if not count.sum():
        return np.empty(0), np.empty(0)
    share = np.cumsum(count) / count.sum()
    keep = np.unique(np.minimum(np.searchsorted(share, QUANTILES), len(share) - 1))
    return value[keep], share[keep]


def curve_traces(curve: Curve, dash: str = "solid") -> list[dict[str, Any]]:
    """Return the line of a distribution, and its band below it."""
    line = {
        "type": "scatter",
        "mode": "lines",
        "name": curve.label,
        "x": short(curve.values),
        "y": short(curve.shares * 100),
        "line": {"color": curve.colour, "width": 2, "dash": dash, "simplify": False},
        "hovertemplate": "%{y:.4~g} % ≤ %{x:,.4~r} ms<extra>" + curve.label + "</extra>",
    }
    if curve.band is None or curve.band.low is None or curve.band.high is None:
        return [line]
    low, high = curve.band.low * 100, curve.band.high * 100
    return [area(curve.values, low, high, curve.colour), line]


def distribution(curves: list[Curve], means: Mapping[str, Any], limits: dict[str, float]) -> Figure:
    """Return cumulative distributions with their percentiles marked, and the SLO limit as a line.

    `means` are the statistics by key (`ttft_ms` ...) of the run, or of the mean over its seeds.
    """
    traces: list[dict[str, Any]] = []
    everything: list[float] = []
    for curve in curves:
        if not len(curve.values):
            continue
        everything += [float(curve.values[0]), float(curve.values[-1])]
        traces += curve_traces(curve)
        traces.append(_marks(curve, means))
    lines = [limits[curve.key] for curve in curves if curve.key in limits]
    axis = latency_axis(everything, lines)
    return {
        "data": traces,
        "layout": {
            "height": 17,
            "xaxis": axis,
            "yaxis": {"range": [0, 101], "ticksuffix": " %", "dtick": 25},
            "shapes": [limit_line(limit) for limit in lines],
            "annotations": [limit_label(limit, axis.get("type") == "log") for limit in lines],
            "margin": {"t": 20, "l": 48, "r": 14, "b": 40},
            "showlegend": False,
        },
    }


def _marks(curve: Curve, means: Mapping[str, Any]) -> dict[str, Any]:
    names = ("p50", "p90", "p95", "p99")
    found = means[curve.key]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": curve.label,
        "showlegend": False,
        "x": [found[name] for name in names],
        "y": [float(name[1:]) for name in names],
        "customdata": list(names),
        "marker": {"color": curve.colour, "size": 6},
        "hovertemplate": "%{customdata} = %{x:,.4~r} ms<extra>" + curve.label + "</extra>",
        "cliponaxis": False,
    }


def latency_axis(values: list[float], limits: list[float]) -> dict[str, Any]:
    """Return an axis in ms for these values and SLO limits, logarithmic where they span much."""
    axis: dict[str, Any] = {"title": {"text": "ms"}, "tickformat": ",~r"}
    if not values:
        return axis
    low, high = min(values), max([*values, *(limit * 1.15 for limit in limits)])
    if low <= 0 or high / low < 4:
        return {**axis, "range": [0, high * 1.05 or 1]}
    span = np.log10(high / low)
    pad = 0.04 * span
    return {
        **axis,
        "type": "log",
        "dtick": "D2" if span < 2 else 1,
        "range": [float(np.log10(low) - pad), float(np.log10(high) + 3 * pad)],
    }


def limit_line(limit_ms: float) -> dict[str, Any]:
    """Return a vertical line at an SLO limit."""
    return {
        "type": "line",
        "x0": limit_ms,
        "x1": limit_ms,
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "line": {"color": "$limit", "width": 1.5, "dash": "dash"},
    }


def limit_label(limit_ms: float, logarithmic: bool) -> dict[str, Any]:
    """Return the line's label."""
    return {
        "x": float(np.log10(limit_ms)) if logarithmic else limit_ms,
        "y": 1,
        "yref": "paper",
        "yanchor": "bottom",
        "text": f"SLO {latency(limit_ms)}",
        "showarrow": False,
        "font": {"color": "$limit"},
    }
