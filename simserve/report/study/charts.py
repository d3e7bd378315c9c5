"""Charts of many points: frontiers and heat maps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

from simserve.metrics.measures import short_names
from simserve.report.page import Figure
from simserve.report.styles import heat_map
from simserve.report.words import number

Point = dict[str, Any]

OUTCOMES = (
    ("ttft_ms.p99", "TTFT p99, ms"),
    ("tpot_ms.p50", "TPOT p50, ms"),
    ("output_tokens_per_s", "output tokens/s"),
    ("cost_per_million_output_tokens", "cost/M tokens"),
    ("attainment", "SLO attainment"),
    ("hit_rate", "prefix hit rate"),
)
SHARES = ("busy", "kv_use_mean", "hit_rate", "estimated_share")
"""Outcomes that are shown in percent."""
MAPPED = ("ttft_ms.p99", "tpot_ms.p50", "output_tokens_per_s", "hit_rate")
MOST_MAPS = 6
MOST_LEVELS = 8
"""More names than these do not fit below half a page."""
SLO_COLOURS = {
    "met": "$decode",
    "missed": "$limit",
    "inconclusive": "$queue",
    "too short": "$queue",
    "none": "$accent",
}


def setting_charts(study: dict[str, Any], done: Sequence[Point]) -> dict[str, Figure]:
    """Return, for each setting that varies, p99 TTFT over its values: one dot per point, by verdict."""
    charts = {}
    key, label = OUTCOMES[0]
    points = [point for point in done if point["means"][key] is not None]
    for i, (path, name) in enumerate(short_names(study["paths"]).items()):
        levels = _levels(points, path)
        if len(levels) < 2:
            continue
        traces = []
        for verdict, colour in SLO_COLOURS.items():
            drawn = [point for point in points if point["slo"] == verdict]
            if drawn:
                traces.append(
                    {
                        "type": "scatter",
                        "mode": "markers",
                        "name": verdict,
                        "x": [levels.index(str(point["settings"].get(path))) for point in drawn],
                        "y": [_short(point["means"][key]) for point in drawn],
                        "text": [_label(point) for point in drawn],
                        "marker": {"color": colour, "size": 9},
                        "hovertemplate": "%{text}<br>%{y:,.4~r} ms<extra></extra>",
                    }
                )
        every = -(-len(levels) // MOST_LEVELS)
        layout = {
            "height": 17,
            "xaxis": {
                "title": {"text": name},
                "tickvals": list(range(0, len(levels), every)),
                "ticktext": levels[::every],
                "range": [-0.5, len(levels) - 0.5],
                "zeroline": False,
            },
            "yaxis": _axis(label, [point["means"][key] for point in points]),
            "margin": {"t": 20, "l": 64, "r": 20, "b": 46},
            "showlegend": False,
        }
        charts[f"by-{i}"] = {"data": traces, "layout": layout}
    return charts


def frontier_charts(study: dict[str, Any], done: Sequence[Point]) -> dict[str, Figure]:
    """Return TTFT against ITL and each against the cost; a dotted line joins what no other point beats."""
    cost = "cost_per_million_output_tokens"
    pairs = {
        "ttft-itl": ("ttft_ms.p99", "itl_ms.p99", "TTFT p99, ms", "ITL p99, ms"),
        "cost-ttft": (cost, "ttft_ms.p99", "cost per million output tokens", "TTFT p99, ms"),
        "cost-itl": (cost, "itl_ms.p99", "cost per million output tokens", "ITL p99, ms"),
    }
    charts = {}
    for name, (x, y, x_words, y_words) in pairs.items():
        points = [p for p in done if p["means"][x] and p["means"][y]]
        if len(points) > 1:
            charts[name] = _frontier(points, x, y, x_words, y_words)
    return charts


def aim_chart(study: dict[str, Any], done: Sequence[Point]) -> dict[str, Figure]:
    """Return the first two aims of a search against each other; its front is joined."""
    aims = [*study["aims"]["minimise"], *study["aims"]["maximise"]]
    if len(aims) < 2 or len(done) < 2:
        return {}
    figure = _frontier(done, aims[0], aims[1], aims[0], aims[1])
    front = sorted((p for p in done if p["point"] in study["front"]), key=lambda p: p["means"][aims[0]])
    figure["data"][0]["x"] = [_short(p["means"][aims[0]]) for p in front]
    figure["data"][0]["y"] = [_short(p["means"][aims[1]]) for p in front]
    return {"aims": figure}


def hypervolume_chart(study: dict[str, Any]) -> dict[str, Figure]:
    """Return how the volume that the front beats grew with the trials."""
    if len(study["hypervolume"]) < 2:
        return {}
    line = {
        "type": "scatter",
        "mode": "lines",
        "x": list(range(1, len(study["hypervolume"]) + 1)),
        "y": [_short(100 * value) for value in study["hypervolume"]],
        "line": {"color": "$accent", "width": 2, "shape": "hv"},
        "hovertemplate": "%{y:.4~g} % after %{x} trials<extra></extra>",
    }
    layout = {
        "height": 21,
        "xaxis": {"title": {"text": "trials"}},
        "yaxis": {"title": {"text": "hypervolume, %"}, "range": [0, 101]},
        "margin": {"t": 20, "l": 60, "r": 16, "b": 46},
    }
    return {"hypervolume": {"data": [line], "layout": layout}}


def unbeaten(points: Sequence[Point], x: str, y: str) -> list[Point]:
    """Return the points than which none is better in both (small is good), by x."""
    best: list[Point] = []
    for point in sorted(points, key=lambda p: (p["means"][x], p["means"][y])):
        if not best or point["means"][y] < best[-1]["means"][y]:
            best.append(point)
    return best


def _frontier(points: Sequence[Point], x: str, y: str, x_words: str, y_words: str) -> Figure:
    front = unbeaten(points, x, y)
    line = {
        "type": "scatter",
        "mode": "lines",
        "x": [_short(p["means"][x]) for p in front],
        "y": [_short(p["means"][y]) for p in front],
        "line": {"color": "$muted", "width": 1.5, "dash": "dot"},
        "hoverinfo": "skip",
    }
    dots = {
        "type": "scatter",
        "mode": "markers",
        "x": [_short(p["means"][x]) for p in points],
        "y": [_short(p["means"][y]) for p in points],
        "text": [_label(p) for p in points],
        "marker": {"color": [SLO_COLOURS[p["slo"]] for p in points], "size": 9},
        "hovertemplate": "%{text}<br>%{x:,.4~r}, %{y:,.4~r}<extra></extra>",
    }
    layout = {
        "height": 21,
        "xaxis": _axis(x_words, [p["means"][x] for p in points]),
        "yaxis": _axis(y_words, [p["means"][y] for p in points]),
        "margin": {"t": 20, "l": 64, "r": 20, "b": 46},
        "showlegend": False,
    }
    return {"data": [line, dots], "layout": layout}


def heat_maps(study: dict[str, Any], done: Sequence[Point]) -> dict[str, Figure]:
    """Return maps of an outcome over pairs of settings; cells show the mean over the other settings."""
    varied = [path for path in study["paths"] if len({str(p["settings"].get(path)) for p in done}) > 1]
    charts = {}
    for i, (across, down) in enumerate(combinations(varied, 2)):
        for key in MAPPED:
            values = {p["means"][key] for p in done}
            if len(charts) < MOST_MAPS and len(values) > 1 and None not in values:
                charts[f"heat-{i}-{key.replace('.', '-')}"] = _heat_map(done, across, down, key)
    return charts


def _heat_map(done: Sequence[Point], across: str, down: str, key: str) -> Figure:
    xs, ys = (_levels(done, path) for path in (across, down))
    cells: dict[tuple[str, str], list[float]] = {}
    for point in done:
        at = (str(point["settings"].get(across)), str(point["settings"].get(down)))
        cells.setdefault(at, []).append(point["means"][key])
    z = [[_mean(cells.get((x, y))) for x in xs] for y in ys]
    label = dict(OUTCOMES)[key]
    names = short_names([across, down])
    hovers = [
        [
            f"{names[across]} {x}, {names[down]} {y}<br>{label} {number(value)}"
            for x, value in zip(xs, line, strict=True)
        ]
        for y, line in zip(ys, z, strict=True)
    ]
    figure = heat_map(
        xs,
        ys,
        z,
        texts=[[number(value) for value in line] for line in z] if len(xs) * len(ys) <= 64 else None,
        hovers=hovers,
        bar={"thickness": 10, "title": {"text": label, "side": "right"}},
    )
    layout = figure["layout"]
    layout |= {"height": 19, "margin": {"t": 14, "l": 70, "r": 10, "b": 48}}
    layout["xaxis"]["title"] = {"text": names[across]}
    layout["yaxis"]["title"] = {"text": names[down]}
    return figure


def _levels(done: Sequence[Point], path: str) -> list[str]:
    values = {str(p["settings"].get(path)): p["settings"].get(path) for p in done}
    numeric = all(isinstance(v, int | float) for v in values.values())
    return sorted(values, key=lambda name: (values[name] if numeric else 0, name))


def _mean(values: list[float] | None) -> float | None:
    return _short(sum(values) / len(values)) if values else None


def _label(point: Point) -> str:
    names = short_names(point["settings"])
    return ", ".join(f"{names[path]} {value}" for path, value in point["settings"].items())


def _axis(title: str, values: list[float]) -> dict[str, Any]:
    axis: dict[str, Any] = {"title": {"text": title}, "tickformat": ",~r"}
    if min(values) > 0 and max(values) / min(values) >= 5:
        axis |= {"type": "log", "dtick": "D2" if max(values) / min(values) < 100 else 1}
    return axis


def _short(value: float) -> float:
    return float(f"{value:.5g}")
