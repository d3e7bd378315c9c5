"""The picture of prefix hits against cache capacity, for the page of a trace."""

from __future__ import annotations

from typing import Any

from simserve.report.page import Figure


def cache_curve_chart(curve: dict[str, Any]) -> Figure:
    """Return the chart of a curve with many points (`CacheCurve.to_dict()`)."""
    lines = [
        _line(curve, "prompt tokens", "token_hit_rate", "$accent", "solid"),
        _line(curve, "blocks", "block_hit_rate", "$other", "dot"),
    ]
    layout = {
        "height": 18,
        "margin": {"l": 56, "r": 16, "t": 12, "b": 44},
        "legend": {"orientation": "h", "x": 0, "y": 1.12},
        "xaxis": {"title": {"text": "cache capacity (tokens)"}, "type": "log"},
        "yaxis": {"title": {"text": "hits (%)"}, "rangemode": "tozero"},
    }
    return {"data": lines, "layout": layout}


def _line(curve: dict[str, Any], name: str, rate: str, colour: str, dash: str) -> dict[str, Any]:
    points = curve["points"]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": [point["capacity_tokens"] for point in points],
        "y": [round(point[rate] * 100, 4) for point in points],
        "customdata": [point["capacity_blocks"] for point in points],
        "line": {"color": colour, "width": 2, "shape": "hv", "dash": dash},
        "hovertemplate": f"%{{y:.2f}} % of {name}<br>"
        "with %{customdata:,} blocks, %{x:,} tokens<extra></extra>",
    }
