"""Charts of several runs together: overlaid distributions, and what one latency costs in another."""

from __future__ import annotations

from typing import Any

import numpy as np

from simserve.metrics.replications import BINS
from simserve.metrics.store import StoredRun
from simserve.report.page import Figure
from simserve.report.run.distributions import (
    Curve,
    curve_traces,
    ecdf,
    gap_ecdf_ms,
    latency_axis,
    limit_label,
    limit_line,
    over_seeds,
)
from simserve.report.run.over_time import Line, Panel, drawn
from simserve.report.run.page import course_of
from simserve.report.stored import Band, bands_of, completed, floats, short
from simserve.report.styles import Look, looks

# Several runs over time: the same series of each, on one axis.

SERIES = {
    "waiting": ("waiting requests", 1.0),
    "running": ("running requests", 1.0),
    "completions_per_s": ("completions/s", 1.0),
    "kv": ("KV held, mean over pools, %", 100.0),
}


def runs_over_time(runs: dict[str, StoredRun]) -> Figure:
    """Return a panel per series with a line per run; over several seeds their means, with bands."""
    curves: dict[str, Band] = {}
    for name, run in runs.items():
        found = course_of(run, BINS)
        if found:
            found["kv"] = _mean([band for key, band in found.items() if key.startswith("kv_mean.")])
        curves |= {f"{key} {name}": found[key] for key in SERIES if key in found}
    rows = [
        Panel(
            title,
            [
                Line(f"{key} {look.name}", look.name, f"${look.colour}", look.dash, scale)
                for look in looks(list(runs))
                if f"{key} {look.name}" in curves
            ],
        )
        for key, (title, scale) in SERIES.items()
    ]
    rows = [panel for panel in rows if panel.lines]
    return drawn(rows, curves, keyed=False) if rows else {"data": [], "layout": {}}


def _mean(bands: list[Band]) -> Band:
    """Return the mean over pools; with its band where there is one pool (pools depend on each other)."""
    if len(bands) == 1:
        return bands[0]
    return Band(bands[0].place, np.mean([band.mean for band in bands], axis=0))


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
        found = ecdf(floats(completed(run), key))
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
        "marker": _markers(points),
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
    dots["textposition"] = _label_places(points, xs, ys, axes)
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


def _markers(points: list[Look]) -> dict[str, Any]:
    return {"color": [f"${p.colour}" for p in points], "symbol": [p.marker for p in points], "size": 10}


_WIDE, _HIGH = 430.0, 210.0
"""Pixels of the picture inside its axes on a usual screen: labels that are clear of each other here are so on
wider ones."""
_LETTER, _LINE, _DOT = 6.2, 14.0, 6.0
"""Pixels of a letter, a line of text, and half a point."""
_PLACES = {
    "top center": (-0.5, -1.0),
    "bottom center": (-0.5, 1.0),
    "middle right": (0.0, 0.0),
    "middle left": (-1.0, 0.0),
    "top right": (0.0, -1.0),
    "top left": (-1.0, -1.0),
    "bottom right": (0.0, 1.0),
    "bottom left": (-1.0, 1.0),
}
"""Where a label may stand, best first: by how many of its widths it begins right of the point, and on which
side of the line through the point."""

Box = tuple[float, float, float, float]
"""Left, top, right, bottom in pixels."""


def _label_places(
    points: list[Look], xs: dict[str, float], ys: dict[str, float], axes: dict[str, dict[str, Any]]
) -> list[str]:
    """Return where each point's label goes so that it covers no other label and no point, if it can."""
    spots = [
        (_along(axes["xaxis"], xs[p.name]) * _WIDE, (1 - _along(axes["yaxis"], ys[p.name])) * _HIGH)
        for p in points
    ]
    taken: list[Box] = [(x - _DOT, y - _DOT, x + _DOT, y + _DOT) for x, y in spots]
    places = []
    for point, spot in zip(points, spots, strict=True):
        boxes = {place: _label_box(point.name, spot, place) for place in _PLACES}
        best = min(_PLACES, key=lambda place: sum(_shared_area(boxes[place], box) for box in taken))
        taken.append(boxes[best])
        places.append(best)
    return places


def _along(axis: dict[str, Any], value: float) -> float:
    """Return where a value lies on an axis, from 0 to 1."""
    low, high = axis["range"]
    return ((float(np.log10(value)) if axis.get("type") == "log" else value) - low) / (high - low)


def _label_box(text: str, spot: tuple[float, float], place: str) -> Box:
    right, below = _PLACES[place]
    width = len(text) * _LETTER
    beside = 0.0 if "center" in place else _DOT * (1 if right == 0 else -1)
    left = spot[0] + right * width + beside
    middle = spot[1] + below * (_DOT + _LINE / 2)
    return left, middle - _LINE / 2, left + width, middle + _LINE / 2


def _shared_area(one: Box, other: Box) -> float:
    wide = min(one[2], other[2]) - max(one[0], other[0])
    high = min(one[3], other[3]) - max(one[1], other[1])
    return wide * high if wide > 0 and high > 0 else 0.0


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
        "marker": _markers(points),
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
