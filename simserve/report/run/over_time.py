"""The run over time: panels on one axis, so that what happens together stands one above the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from simserve.report.page import Figure
from simserve.report.stored import Band, Float64, area, short

# Pictures of ranks that step together: how uneven the experts of each layer are.


def gamma_chart(groups: list[dict[str, Any]]) -> Figure:
    """Return busiest over mean expert rank by MoE layer, a line per group (none without a gamma)."""
    lines = [group for group in groups if group["gamma"]]
    return {
        "data": [
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": group["name"],
                "x": list(range(len(group["gamma"]))),
                "y": [round(value, 3) for value in group["gamma"]],
                "hovertemplate": "MoE layer %{x}: %{y:.2f}<extra>" + group["name"] + "</extra>",
                "line": {"color": "$accent"} if number == 0 else {},
            }
            for number, group in enumerate(lines[:6])
        ],
        "layout": {
            "height": 16,
            "xaxis": {"title": {"text": "MoE layer"}},
            "yaxis": {"title": {"text": "busiest / mean rank"}, "rangemode": "tozero"},
            "showlegend": len(lines) > 1,
            "margin": {"t": 8, "r": 20},
        },
    }


PANEL_REM = 8.4
GAP_REM = 2.2
COLOURS = ("$accent", "$decode", "$queue", "$other", "$requeue", "$muted")
"""Of pools, in their order."""


class Line(NamedTuple):
    """One series of a panel."""

    key: str
    name: str
    colour: str
    dash: str = "solid"
    scale: float = 1.0


class Panel(NamedTuple):
    """One row of the picture."""

    title: str
    lines: list[Line]
    stacked: bool = False


def over_time(curves: Mapping[str, Band], steady: tuple[float, float] | None) -> Figure:
    """Return the picture of a run from its series by name (see `metrics.course`), in seconds."""
    return drawn(panels(curves), curves, steady)


def drawn(
    rows: list[Panel],
    curves: Mapping[str, Band],
    steady: tuple[float, float] | None = None,
    *,
    keyed: bool = True,
) -> Figure:
    """Return the panels below each other, with the steady window shaded (in seconds).

    `keyed` puts the names of a panel's lines beside its title; else the page has them elsewhere.
    """
    first = min(float(curves[line.key].place[0]) for panel in rows for line in panel.lines)
    last = max(float(curves[line.key].place[-1]) for panel in rows for line in panel.lines)
    unit, scale = _time_unit(last)
    height = len(rows) * (PANEL_REM + GAP_REM) + 3
    layout: dict[str, Any] = {
        "height": height,
        "hovermode": "x unified",
        "hoversubplots": "axis",
        "showlegend": False,
        "legend": {"traceorder": "normal"},  # of what is said where one points
        "margin": {"t": 28, "l": 56, "r": 14, "b": 44},
        "annotations": [],
        "xaxis": {
            "title": {"text": f"time, {unit}"},
            "anchor": _axis(len(rows) - 1),
            "range": [first / scale, last / scale],
            "hoverformat": ",.4~r",
        },
        "shapes": [] if steady is None else [_shade(steady[0] / scale, steady[1] / scale)],
    }
    traces = []
    share = 1 / max(len(rows) * (PANEL_REM + GAP_REM) - GAP_REM, 1)
    for number, panel in enumerate(rows):
        top = 1 - number * (PANEL_REM + GAP_REM) * share
        layout[_axis(number).replace("y", "yaxis")] = {
            "domain": [max(top - PANEL_REM * share, 0.0), top],
            "rangemode": "tozero",
            "nticks": 5,
        }
        layout["annotations"].append(_panel_title(panel, top, keyed))
        traces += _panel(panel, curves, scale, _axis(number))
    return {"data": traces, "layout": layout}


def panels(curves: Mapping[str, Band]) -> list[Panel]:
    """Return the panels that have something to say about a run."""
    rows = [
        Panel(
            "requests/s",
            [
                Line("arrivals_per_s", "arrivals", "$muted"),
                Line("completions_per_s", "completions", "$decode"),
            ],
        ),
        Panel("requests", [Line("running", "running", "$prefill"), Line("waiting", "waiting", "$queue")]),
        Panel(
            "tokens per step",
            [Line("prefill_per_step", "prefill", "$prefill"), Line("decode_per_step", "decode", "$decode")],
            stacked=True,
        ),
        Panel("KV held, %", _kv_lines(curves)),
        Panel(
            "context tokens",
            [
                Line("context.cached", "cached", "$other"),
                Line("context.prompt", "prompt", "$prefill"),
                Line("context.answer", "answer", "$decode"),
            ],
            stacked=True,
        ),
        Panel("cache hits, % of prompt tokens", [Line("hit_rate", "hits", "$other", scale=100)]),
        Panel(
            "prompts in transfer",
            [
                Line("transfer.waiting", "waiting for room", "$queue"),
                Line("transfer.moving", "moving", "$other"),
            ],
        ),
        Panel("busiest / mean replica", _pool_lines(curves, "imbalance")),
    ]
    return [panel for panel in (_present(panel, curves) for panel in rows) if panel.lines]


def _present(panel: Panel, curves: Mapping[str, Band]) -> Panel:
    """Return a panel without lines that do not exist, have one place only, or find nothing in a cache."""
    lines = [line for line in panel.lines if line.key in curves]
    silent = {"hit_rate", "context.cached"}
    return panel._replace(
        lines=[
            line
            for line in lines
            if np.count_nonzero(~np.isnan(curves[line.key].mean)) > 1
            and (line.key not in silent or np.nan_to_num(curves[line.key].mean).any())
        ]
    )


def _kv_lines(curves: Mapping[str, Band]) -> list[Line]:
    means, fullest = _pool_lines(curves, "kv_mean"), _pool_lines(curves, "kv_fullest")
    if len(means) == 1:
        words = "KV held, mean" if fullest else "KV held"
        means = [means[0]._replace(name=words)]
        fullest = [line._replace(name="fullest replica", colour="$queue") for line in fullest]
    else:
        fullest = [line._replace(name=f"{line.name}, fullest", dash="dot") for line in fullest]
    return [line._replace(scale=100) for line in (*means, *fullest)]


def _pool_lines(curves: Mapping[str, Band], what: str) -> list[Line]:
    names = [key.partition(".")[2] for key in curves if key.startswith("kv_mean.")]
    colours = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(names)}
    return [Line(f"{what}.{name}", name, colours[name]) for name in names if f"{what}.{name}" in curves]


def _panel(panel: Panel, curves: Mapping[str, Band], scale: float, axis: str) -> list[dict[str, Any]]:
    traces = []
    found = [(line, curves[line.key]) for line in panel.lines]
    stack = axis if panel.stacked and all(curve.low is None for _, curve in found) else ""
    for line, curve in found:
        time = curve.place / scale
        if curve.low is not None and curve.high is not None:
            ends = (curve.low * line.scale, curve.high * line.scale)
            traces.append(area(time, *ends, line.colour, yaxis=axis))
        traces.append(_time_line(time, curve.mean * line.scale, line, axis, stack))
    return traces


def _time_line(time: Float64, values: Float64, line: Line, axis: str, stack: str) -> dict[str, Any]:
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines",
        "name": line.name,
        "x": short(time),
        "y": short(values),
        "yaxis": axis,
        "line": {"color": line.colour, "width": 1.5, "dash": line.dash},
        "connectgaps": True,
        "hovertemplate": "%{y:,.4~r}",
    }
    if stack:
        trace |= {"stackgroup": stack, "line": {"color": line.colour, "width": 0.5}}
    return trace


def _panel_title(panel: Panel, top: float, keyed: bool) -> dict[str, Any]:
    keys = "  ".join(f'<span style="color:{line.colour}">■</span> {_safe(line.name)}' for line in panel.lines)
    return {
        "text": f"<b>{panel.title}</b>   {keys}" if keyed else f"<b>{panel.title}</b>",
        "x": 0,
        "xref": "paper",
        "xanchor": "left",
        "y": top,
        "yref": "paper",
        "yanchor": "bottom",
        "showarrow": False,
    }


def _safe(name: str) -> str:
    """Return a name as plotly shows it literally in its small HTML."""
    return name.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _axis(number: int) -> str:
    return "y" if number == 0 else f"y{number + 1}"


def _shade(start: float, end: float) -> dict[str, Any]:
    box = {"type": "rect", "xref": "x", "x0": start, "x1": end, "yref": "paper", "y0": 0, "y1": 1}
    return {**box, "fillcolor": "$muted", "opacity": 0.07, "line": {"width": 0}, "layer": "below"}


def _time_unit(longest_s: float) -> tuple[str, float]:
    if longest_s >= 3 * 3600:
        return "h", 3600.0
    return ("min", 60.0) if longest_s >= 600 else ("s", 1.0)
