"""Charts of several runs together: overlaid distributions, and what one latency costs in another."""

from __future__ import annotations

from typing import Any

import numpy as np

from simserve.metrics.store import StoredRun
from simserve.report.bands import bands_of
from simserve.report.distributions import (
    Curve,
    curve_traces,
    ecdf,
    gap_ecdf_ms,
    latency_axis,
    limit_label,
    limit_line,
    over_seeds,
)
from simserve.report.looks import Look, looks
from simserve.report.page import Figure
from simserve.report.stored import equals, floats, short


def overlays(runs: dict[str, StoredRun], limits: dict[str, float]) -> dict[str, Figure]:
    """Return the cumulative distributions of all runs, one figure per latency."""
    curves = {key: [_curve(look, runs[look.name], key) for look in looks(list(runs))] for key in _LATENCIES}
    return {
        f"all-{key.removesuffix('_ms')}": _overlay(lines, limits.get(key)) for key, lines in curves.items()
    }


_LATENCIES = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms")


def _curve(look: Look, run: StoredRun, key: str) -> tuple[Look, Curve]:
    """Return a run's distribution; the mean over its seeds, if it has several."""
    if key == "itl_ms":
        found = gap_ecdf_ms(run.gaps, "whole")
    else:
        done = run.requests.filter(equals(run.requests["status"], "completed"))
        found = ecdf(floats(done, key))
    return look, over_seeds(Curve(look.name, f"${look.colour}", key, *found), bands_of(run))


def _overlay(curves: list[tuple[Look, Curve]], limit: float | None) -> Figure:
    traces, ends = [], []
    for look, curve in curves:
        if len(curve.values):
            ends += [float(curve.values[0]), float(curve.values[-1])]
            traces += curve_traces(curve, look.dash)
    lines = [] if limit is None else [limit]
    axis = latency_axis(ends, lines)
    return {
        "data": traces,
        "layout": {
            "height": 19,
            "xaxis": axis,
            "yaxis": {"range": [0, 101], "ticksuffix": " %", "dtick": 25},
            "shapes": [limit_line(line) for line in lines],
            "annotations": [limit_label(line, axis.get("type") == "log") for line in lines],
            "margin": {"t": 20, "l": 48, "r": 14, "b": 40},
            "showlegend": False,
        },
    }


def frontier(table: dict[str, Any], x_key: str, y_key: str) -> Figure:
    """Return one labelled point per run; the line joins the runs that no other beats in both."""
    rows = {row["key"]: row for row in table["measures"]}
    if x_key not in rows or y_key not in rows:
        return {"data": [], "layout": {}}
    xs, ys = rows[x_key]["values"], rows[y_key]["values"]
    points = [look for look in looks([table["base"], *table["variants"]]) if _both(xs, ys, look.name)]
    best = sorted(
        (xs[p.name], ys[p.name]) for p in points if not any(_beats(xs, ys, q.name, p.name) for q in points)
    )
    line = {
        "type": "scatter",
        "mode": "lines",
        "x": short(np.array([x for x, _ in best])),
        "y": short(np.array([y for _, y in best])),
        "line": {"color": "$muted", "width": 1.5, "dash": "dot"},
        "hoverinfo": "skip",
    }
    dots = {
        "type": "scatter",
        "mode": "markers+text",
        "x": short(np.array([xs[p.name] for p in points])),
        "y": short(np.array([ys[p.name] for p in points])),
        "text": [p.name for p in points],
        "textposition": _label_places([(xs[p.name], ys[p.name]) for p in points]),
        "marker": {"color": [f"${p.colour}" for p in points], "size": 10},
        "hovertemplate": "%{text}: %{x:,.4~r} ms, %{y:,.4~r} ms<extra></extra>",
        "cliponaxis": False,
    }
    names = [p.name for p in points]
    axes = {}
    for axis, row in (("x", rows[x_key]), ("y", rows[y_key])):
        ends = [row["values"][name] for name in names]
        if any((row.get("intervals") or {}).get(name) for name in names):
            dots[f"error_{axis}"] = _whiskers(row, names)
            ends += [end for name in names for end in row["intervals"][name] or () if end > 0]
        axes[f"{axis}axis"] = _axis(f"{row['label']}, ms", ends)
    return {
        "data": [line, dots] if points else [],
        "layout": {
            "height": 21,
            **axes,
            "margin": {"t": 26, "l": 60, "r": 30, "b": 44},
            "showlegend": False,
        },
    }


def _whiskers(row: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """Return the intervals of the runs' values over several seeds, as plotly draws them."""
    ends = [row["intervals"][name] or [row["values"][name]] * 2 for name in names]
    values = np.array([row["values"][name] for name in names])
    lows, highs = np.array(ends).T
    return {
        "type": "data",
        "symmetric": False,
        "array": short(highs - values),
        "arrayminus": short(values - lows),
        "color": "$muted",
        "thickness": 1,
        "width": 3,
    }


_NEAR = 0.08
"""Points nearer than this share of the picture in both directions would print labels over each other."""
_PLACES = ("top center", "bottom center", "middle right", "middle left")


def _label_places(points: list[tuple[float, float]]) -> list[str]:
    """Return where each point's label goes: above it, or elsewhere where a neighbour's is already."""
    if not points:
        return []
    spots = np.log(np.array(points, dtype=np.float64))
    span = np.maximum(np.ptp(spots, axis=0), 1e-9)
    places: list[str] = []
    for i, spot in enumerate(spots):
        near = [j for j in range(i) if (np.abs(spots[j] - spot) < _NEAR * span).all()]
        taken = {places[j] for j in near}
        places.append(next((place for place in _PLACES if place not in taken), _PLACES[0]))
    return places


def _both(xs: dict[str, Any], ys: dict[str, Any], name: str) -> bool:
    return bool(xs.get(name)) and bool(ys.get(name))


def _beats(xs: dict[str, float], ys: dict[str, float], one: str, other: str) -> bool:
    """Return True if a run is nowhere worse than another and somewhere better."""
    no_worse = xs[one] <= xs[other] and ys[one] <= ys[other]
    return no_worse and (xs[one] < xs[other] or ys[one] < ys[other])


def _axis(title: str, values: list[float]) -> dict[str, Any]:
    """Return an axis with room for labels; logarithmic from a factor of 5 on."""
    axis: dict[str, Any] = {"title": {"text": title}, "tickformat": ",~r"}
    low, high = min(values, default=1), max(values, default=1)
    if high / low < 5:
        pad = max((high - low) * 0.2, high * 0.05)
        return {**axis, "range": [max(low - pad, 0), high + pad]}
    span = float(np.log10(high / low))
    bounds = [float(np.log10(low)) - 0.15 * span, float(np.log10(high)) + 0.15 * span]
    return {**axis, "type": "log", "dtick": "D2" if span < 2 else 1, "range": bounds}


_SOURCES = {"hbm": "$decode", "cpu": "$queue", "ssd": "$requeue", "remote": "$other", "computed": "$prefill"}
"""Where prompt tokens come from, fastest first, and how each is drawn."""


def prompt_sources(runs: dict[str, StoredRun]) -> Figure:
    """Return one bar per run: prompt tokens of completed requests found in HBM or a tier, and computed."""
    names = list(runs)[::-1]
    found = [_tokens_by_source(runs[name].summary) for name in names]
    whole = np.array([max(sum(tokens.values()), 1) for tokens in found], dtype=np.float64)
    if not any(tokens[source] for tokens in found for source in tokens if source != "computed"):
        return {"data": [], "layout": {}}
    labels = {"hbm": "found in the prefix cache", "computed": "computed"}
    shares = {
        source: np.array([tokens.get(source, 0) for tokens in found], np.float64) for source in _SOURCES
    }
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": labels.get(source, f"loaded from {source}"),
            "y": names,
            "x": short(100 * tokens / whole),
            "customdata": [f"{int(n):,}" for n in tokens],
            "hovertemplate": "%{customdata} tokens, %{x:.3~g} %<extra>%{fullData.name}</extra>",
            "marker": {"color": _SOURCES[source]},
        }
        for source, tokens in shares.items()
        if tokens.any() or source in labels
    ]
    return {
        "data": traces,
        "layout": {
            "height": 6 + 2.2 * len(names),
            "barmode": "stack",
            "bargap": 0.35,
            "xaxis": {"range": [0, 100], "ticksuffix": " %", "dtick": 25},
            "yaxis": {"automargin": True, "showgrid": False},
            "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "traceorder": "normal"},
            "margin": {"t": 30, "l": 10, "r": 34, "b": 30},
        },
    }


def _tokens_by_source(summary: dict[str, Any]) -> dict[str, int]:
    """Return prompt tokens by source; a tier has no more than was found (preempted requests load again)."""
    counts = summary["counts"]
    cached = left = counts.get("cached_tokens", 0)
    tokens: dict[str, int] = {}
    for tier in summary.get("kv_tiers") or []:
        share = min(left, tier["hit_tokens"])
        tokens[tier["kind"]] = tokens.get(tier["kind"], 0) + share
        left -= share
    return tokens | {"hbm": left, "computed": counts["prompt_tokens"] - cached}


def hits_by_capacity(table: dict[str, Any]) -> Figure:
    """Return the prefix hit rate of each run that has one, against the KV memory of its replicas.

    Empty unless three runs or more have different memories.
    """
    rows = {row["key"]: row["values"] for row in table["measures"]}
    capacity, rates = rows.get("deployment.kv_tokens", {}), rows.get("whole.hit_rate", {})
    points = [p for p in looks([table["base"], *table["variants"]]) if _both(capacity, rates, p.name)]
    if len({capacity[p.name] for p in points}) < 3:
        return {"data": [], "layout": {}}
    points.sort(key=lambda p: capacity[p.name])
    xs = [float(capacity[p.name]) for p in points]
    ys = [100 * float(rates[p.name]) for p in points]
    dots = {
        "type": "scatter",
        "mode": "lines+markers+text",
        "x": short(np.array(xs)),
        "y": short(np.array(ys)),
        "text": [p.name for p in points],
        "textposition": "top center",
        "line": {"color": "$muted", "width": 1.5, "dash": "dot"},
        "marker": {"color": [f"${p.colour}" for p in points], "size": 10},
        "hovertemplate": "%{text}: %{x:,.4~r} tokens, %{y:.3~g} %<extra></extra>",
        "cliponaxis": False,
    }
    return {
        "data": [dots],
        "layout": {
            "height": 19,
            "xaxis": _axis("KV capacity, tokens", xs),
            "yaxis": {"title": {"text": "prefix hit rate"}, "ticksuffix": " %", "range": [0, max(ys) * 1.25]},
            "margin": {"t": 20, "l": 60, "r": 30, "b": 44},
            "showlegend": False,
        },
    }
