"""The capacity of a deployment as one offline page: the answer, the saturation curve, the loads tried."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simserve.report.page import Figure, render
from simserve.report.study.charts import SHARES
from simserve.report.study.words import capacity_headline, capacity_limit
from simserve.report.tiles.study import basis_of, capacity_tiles, carried_point, study_notices

CURVES = (
    ("ttft_ms.p99", "TTFT p99, ms"),
    ("tpot_ms.p50", "TPOT p50, ms"),
    ("itl_ms.p99", "ITL p99, ms"),
    ("output_tokens_per_s", "output tokens/s"),
)
TABLE_COLUMNS = (
    ("requests_per_s", "requests/s"),
    ("output_tokens_per_s", "output tokens/s"),
    ("ttft_ms.p50", "TTFT p50, ms"),
    ("ttft_ms.p99", "TTFT p99, ms"),
    ("tpot_ms.p50", "TPOT p50, ms"),
    ("itl_ms.p99", "ITL p99, ms"),
    ("busy", "busy"),
    ("kv_use_mean", "KV use"),
)


def write_capacity_page(study: dict[str, Any], path: Path) -> None:
    """Write the page to `path`; the same study gives the same bytes."""
    points = study["points"]
    charts = {"saturation": saturation_chart(study)}
    for key, label in CURVES:
        if all(point["means"][key] is not None for point in points):
            charts[f"curve-{key.replace('.', '-')}"] = _curve(study, key, label)
    columns = [
        (key, label) for key, label in TABLE_COLUMNS if any(p["means"][key] is not None for p in points)
    ]
    page = render(
        "capacity.html.j2",
        charts,
        title=study["name"],
        headline=capacity_headline(study),
        tiles=capacity_tiles(study),
        warnings=study_notices(study, carried_point(study) or points[0], points),
        basis=basis_of((carried_point(study) or points[0])["means"]),
        limit=capacity_limit(study),
        study=study,
        columns=columns,
        shares=SHARES,
        curves=[name for name in charts if name != "saturation"],
    )
    path.write_text(page, encoding="utf-8")


def saturation_chart(study: dict[str, Any]) -> Figure:
    """Draw the share of good requests over the load, with its interval, for every target."""
    colours = ("$accent", "$queue", "$decode", "$other", "$requeue")
    data, shapes = [], []
    for i, words in enumerate(study["targets"]):
        points = [p for p in study["points"] if p["targets"][i]["estimate"] is not None]
        found = [p["targets"][i] for p in points]
        colour = colours[i % len(colours)]
        data.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": words,
                "x": [_short(p["load"]) for p in points],
                "y": [_short(100 * t["estimate"]) for t in found],
                "error_y": {
                    "type": "data",
                    "symmetric": False,
                    "array": [_short(100 * (t["high"] - t["estimate"])) for t in found],
                    "arrayminus": [_short(100 * (t["estimate"] - t["low"])) for t in found],
                    "thickness": 1,
                    "width": 3,
                    "color": colour,
                },
                "line": {"color": colour, "width": 2},
                "marker": {"color": colour, "size": 5},
                "hovertemplate": "%{y:.4~g} % at %{x:,.4~r}<extra>" + words + "</extra>",
            }
        )
        if found:
            shapes.append(_line("y", 100 * found[0]["share"], colour))
    shapes += _interval_shapes(study)
    layout = _layout(study, "% of requests within limits") | {"shapes": shapes, "showlegend": len(data) > 1}
    return {"data": data, "layout": layout}


def _curve(study: dict[str, Any], key: str, label: str) -> Figure:
    points = study["points"]
    error = [p["intervals"].get(key) for p in points]
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines+markers",
        "x": [_short(p["load"]) for p in points],
        "y": [_short(p["means"][key]) for p in points],
        "line": {"color": "$accent", "width": 2},
        "marker": {"color": "$accent", "size": 5},
        "hovertemplate": "%{y:,.4~r} at %{x:,.4~r}<extra></extra>",
    }
    if all(error):
        halves = [_short((ends[1] - ends[0]) / 2) for ends in error if ends]
        trace["error_y"] = {
            "type": "data",
            "array": halves,
            "arrayminus": [
                min(half, y) for half, y in zip(halves, trace["y"], strict=True)
            ],  # none is below 0
            "thickness": 1,
            "width": 3,
            "color": "$accent",
        }
    layout: dict[str, Any] = _layout(study, label) | {"shapes": _interval_shapes(study)}
    values = [p["means"][key] for p in points]
    least = min([*values, *(ends[0] for ends in error if ends)])
    if (
        "_ms" in key and least > 0 and max(values) / min(values) > 20
    ):  # a whisker that reaches 0 has no place on a log axis
        layout["yaxis"] |= {"type": "log", "dtick": "D2" if max(values) / least < 100 else 1}
    else:
        layout["yaxis"]["rangemode"] = "tozero"
    return {"data": [trace], "layout": layout}


def _layout(study: dict[str, Any], title: str) -> dict[str, Any]:
    what = "requests per second offered" if study["of"] == "rate" else study["unit"]
    return {
        "height": 21,
        "xaxis": {"title": {"text": what}},
        "yaxis": {"title": {"text": title}, "tickformat": ",~r"},
        "margin": {"t": 24, "l": 64, "r": 16, "b": 46},
        "showlegend": False,
        "legend": {"orientation": "h", "y": 1.15},
    }


def _interval_shapes(study: dict[str, Any]) -> list[dict[str, Any]]:
    """Shade the interval of the capacity, and draw a line at the estimate."""
    found = study["capacity"]
    if found["low"] is None:
        return []
    high = found["high"] if found["high"] is not None else study["range"][1]
    band = {"type": "rect", "xref": "x", "yref": "paper", "x0": found["low"], "x1": high, "y0": 0, "y1": 1}
    look = {"fillcolor": "$accent", "opacity": 0.15, "line": {"width": 0}}
    estimate = found["estimate"] if found["estimate"] is not None else found["low"]
    return [{**band, **look}, _line("x", estimate, "$accent")]


def _line(axis: str, at: float, colour: str) -> dict[str, Any]:
    other = "y" if axis == "x" else "x"
    ends = {f"{axis}0": at, f"{axis}1": at, f"{other}0": 0, f"{other}1": 1}
    return {
        "type": "line",
        f"{axis}ref": axis,
        f"{other}ref": "paper",
        **ends,
        "line": {"color": colour, "width": 1, "dash": "dash"},
    }


def _short(value: float) -> float:
    return float(f"{value:.5g}")
