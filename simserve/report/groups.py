"""Pictures of ranks that step together: how uneven the experts of each layer are."""

from __future__ import annotations

from typing import Any

from simserve.report.page import Figure


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
