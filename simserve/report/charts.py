"""The charts as plain plotly figures. Colours are names of the page's palette (`$accent`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from simserve.report.format import latency
from simserve.report.page import Figure
from simserve.report.series import Course, Parts

Curve = tuple[str, str, str, tuple[np.ndarray, np.ndarray]]
"""(label, colour, summary key, (values, shares))."""

PARTS = (
    ("queue", "queue_ms", "$queue"),
    ("prefill", "prefill_ms", "$prefill"),
    ("decode", "decode_ms", "$decode"),
    ("waiting after preemption", "requeue_ms", "$requeue"),
)


def distribution(curves: list[Curve], window: dict[str, Any], limits: dict[str, float]) -> Figure:
    """Cumulative distributions with their percentiles marked, and the SLO limit as a line."""
    traces: list[dict[str, Any]] = []
    everything: list[float] = []
    for label, colour, key, (values, shares) in curves:
        if not len(values):
            continue
        everything += [float(values[0]), float(values[-1])]
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": label,
                "x": _short(values),
                "y": _short(shares * 100),
                "line": {"color": colour, "width": 2, "simplify": False},
                "hovertemplate": "%{y:.4~g} % ≤ %{x:,.4~g} ms<extra>" + label + "</extra>",
            }
        )
        traces.append(_marks(label, colour, window[key]))
    keys = [key for _, _, key, _ in curves]
    lines = {key: limits[key] for key in keys if key in limits}
    return {
        "data": traces,
        "layout": {
            "height": 17,
            "xaxis": _latency_axis(everything, list(lines.values())),
            "yaxis": {"range": [0, 101], "ticksuffix": " %", "dtick": 25},
            "shapes": [_limit_line(limit) for limit in lines.values()],
            "annotations": [_limit_label(key, limit, everything) for key, limit in lines.items()],
            "margin": {"t": 20, "l": 48, "r": 14, "b": 40},
            "showlegend": False,
        },
    }


def over_time(run: Course, steady: tuple[float, float] | None) -> Figure:
    """Arrivals, requests, KV use and step sizes on one time axis."""
    unit, scale = _time_unit(float(run.time_s[-1]))
    time = _short(run.time_s / scale)
    kv = list(run.kv_use.values())
    panels = [
        (
            "requests/s",
            [("arrivals", "$muted", run.arrivals_per_s), ("completions", "$decode", run.completions_per_s)],
        ),
        ("requests", [("running", "$prefill", run.running), ("waiting", "$queue", run.waiting)]),
        ("KV use, %", _kv_lines(kv)),
        (
            "tokens per step",
            [("prefill", "$prefill", run.prefill_per_step), ("decode", "$decode", run.decode_per_step)],
        ),
    ]
    layout: dict[str, Any] = {
        "height": 44,
        "hovermode": "x unified",
        "showlegend": False,
        "margin": {"t": 28, "l": 56, "r": 14, "b": 44},
        "annotations": [],
        "xaxis": {"title": {"text": f"time, {unit}"}, "anchor": "y4", "range": [time[0], time[-1]]},
        "shapes": [] if steady is None else [_shade(steady[0] / scale, steady[1] / scale)],
    }
    traces = []
    for row, (title, lines) in enumerate(panels):
        axis = "y" if row == 0 else f"y{row + 1}"
        top = 1 - row * 0.26
        layout[axis.replace("y", "yaxis")] = {
            "domain": [top - 0.205, top],
            "rangemode": "tozero",
            "nticks": 5,
        }
        layout["annotations"].append(_panel_title(title, lines, top))
        traces += [_time_line(time, line, axis, filled=row == 3) for line in lines]
    return {"data": traces, "layout": layout}


def where_time_went(groups: list[Parts]) -> Figure:
    """One bar per group of requests, split by where their mean time went."""
    labels = [f"{group.label}<br>mean {latency(group.mean_ms)}" for group in groups][::-1]
    traces = []
    for name, field, colour in PARTS:
        means = np.array([getattr(group, field) for group in groups][::-1])
        totals = np.array([group.mean_ms for group in groups][::-1])
        if not means.any():
            continue
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": name,
                "y": labels,
                "x": _short(100 * means / np.maximum(totals, 1e-12)),
                "customdata": [latency(float(mean)) for mean in means],
                "hovertemplate": "%{customdata}, %{x:.3~g} %<extra>" + name + "</extra>",
                "marker": {"color": colour},
            }
        )
    return {
        "data": traces,
        "layout": {
            "height": 15,
            "barmode": "stack",
            "bargap": 0.35,
            "xaxis": {"range": [0, 100], "ticksuffix": " %", "dtick": 25},
            "yaxis": {"automargin": True, "showgrid": False},
            "showlegend": False,
            "margin": {"t": 8, "l": 10, "r": 34, "b": 30},
        },
    }


def _marks(label: str, colour: str, found: dict[str, Any]) -> dict[str, Any]:
    names = ("p50", "p90", "p95", "p99")
    return {
        "type": "scatter",
        "mode": "markers",
        "name": label,
        "showlegend": False,
        "x": [found[name] for name in names],
        "y": [float(name[1:]) for name in names],
        "customdata": list(names),
        "marker": {"color": colour, "size": 6},
        "hovertemplate": "%{customdata} = %{x:,.4~g} ms<extra>" + label + "</extra>",
        "cliponaxis": False,
    }


def _latency_axis(values: list[float], limits: list[float]) -> dict[str, Any]:
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


def _limit_line(limit_ms: float) -> dict[str, Any]:
    return {
        "type": "line",
        "x0": limit_ms,
        "x1": limit_ms,
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "line": {"color": "$limit", "width": 1.5, "dash": "dash"},
    }


def _limit_label(key: str, limit_ms: float, values: list[float]) -> dict[str, Any]:
    logarithmic = _latency_axis(values, [limit_ms]).get("type") == "log"
    return {
        "x": float(np.log10(limit_ms)) if logarithmic else limit_ms,
        "y": 1,
        "yref": "paper",
        "yanchor": "bottom",
        "text": f"SLO {latency(limit_ms)}",
        "showarrow": False,
        "font": {"color": "$limit"},
    }


def _kv_lines(shares: list[np.ndarray]) -> list[tuple[str, str, np.ndarray]]:
    if not shares:
        return []
    percent = np.array(shares) * 100
    if len(shares) == 1:
        return [("replica", "$accent", percent[0])]
    return [("mean", "$accent", percent.mean(axis=0)), ("fullest replica", "$queue", percent.max(axis=0))]


def _panel_title(title: str, lines: list[tuple[str, str, np.ndarray]], top: float) -> dict[str, Any]:
    keys = "  ".join(f'<span style="color:{colour}">■</span> {name}' for name, colour, _ in lines)
    return {
        "text": f"<b>{title}</b>   {keys}",
        "x": 0,
        "xref": "paper",
        "xanchor": "left",
        "y": top,
        "yref": "paper",
        "yanchor": "bottom",
        "showarrow": False,
    }


def _time_line(
    time: list[float], line: tuple[str, str, np.ndarray], axis: str, filled: bool
) -> dict[str, Any]:
    name, colour, values = line
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": time,
        "y": _short(values),
        "yaxis": axis,
        "line": {"color": colour, "width": 1.5},
        "hovertemplate": "%{y:,.4~g}",
    }
    if filled:
        trace |= {"stackgroup": "steps", "line": {"color": colour, "width": 0.5}}
    return trace


def _shade(start: float, end: float) -> dict[str, Any]:
    box = {"type": "rect", "xref": "x", "x0": start, "x1": end, "yref": "paper", "y0": 0, "y1": 1}
    return {**box, "fillcolor": "$muted", "opacity": 0.07, "line": {"width": 0}, "layer": "below"}


def _time_unit(longest_s: float) -> tuple[str, float]:
    if longest_s >= 3 * 3600:
        return "h", 3600.0
    return ("min", 60.0) if longest_s >= 600 else ("s", 1.0)


def _short(values: np.ndarray) -> list[float]:
    """Return the values with 5 significant digits: enough to draw, and small in the page."""
    return [float(f"{value:.5g}") for value in values.tolist()]
