"""A trace as one offline page: lengths, arrivals over time, cumulative distributions.

Knows the `Trace` and plain figures (`TraceStats.to_dict()`), nothing of readers or of the command line.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.core import Trace
from simserve.report.page import Figure, render
from simserve.units import NS_PER_S

# The picture of prefix hits against cache capacity, for the page of a trace.


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


_BARS = 60
_TIME_BINS = 240
_POINTS = 400


def write_trace_page(trace: Trace, figures: dict[str, Any], path: Path) -> None:
    """Write the page to `path`; the same trace gives the same bytes.

    With `cache` and `cache_line` (`CacheCurve.to_dict()`, a table and many points) among the figures, the
    page also shows prefix hits against cache capacity.
    """
    charts = {
        "prompts": _histogram(trace.prompt_tokens, "prompt tokens", "$prefill"),
        "outputs": _histogram(trace.output_tokens, "output tokens", "$decode"),
        "arrivals": _arrivals(trace.arrival_ns),
        "tokens": _tokens(trace),
        "cumulative": _cumulative(trace),
    }
    if "cache_line" in figures:
        charts["cache"] = cache_curve_chart(figures["cache_line"])
    page = render("trace.html.j2", charts, title=trace.origin.name, origin=trace.origin, figures=figures)
    path.write_text(page, encoding="utf-8")


def _histogram(tokens: NDArray[np.int64], what: str, colour: str) -> Figure:
    """Bars of equal width on a logarithmic axis; lengths of 0 are named in the table, not drawn."""
    positive = tokens[tokens > 0]
    edges = np.geomspace(1, max(2, int(tokens.max(initial=0)) + 1), _BARS + 1)
    counts, _ = np.histogram(positive, edges)
    bars = {
        "type": "bar",
        "x": _rounded(np.sqrt(edges[:-1] * edges[1:])),
        "y": counts.tolist(),
        "width": _rounded(np.diff(edges)),
        "marker": {"color": colour},
        "hovertemplate": "%{y:,} requests of about %{x:,.0f} tokens<extra></extra>",
    }
    return _figure([bars], {"title": {"text": what}, "type": "log"}, {"title": {"text": "requests"}})


def _arrivals(arrival_ns: NDArray[np.int64]) -> Figure:
    middle_s, width_s, counts = _binned(arrival_ns, None)
    line = {
        "type": "scatter",
        "mode": "lines",
        "x": _rounded(middle_s),
        "y": _rounded(counts / width_s),
        "line": {"color": "$accent", "width": 1.5, "shape": "hvh"},
        "hovertemplate": "%{y:.3~g} requests/s at %{x:,.0f} s<extra></extra>",
    }
    return _figure(
        [line], {"title": {"text": "s"}}, {"title": {"text": "requests per s"}, "rangemode": "tozero"}
    )


def _tokens(trace: Trace) -> Figure:
    lines = []
    for name, column, colour in (
        ("prompt", trace.prompt_tokens, "$prefill"),
        ("output", trace.output_tokens, "$decode"),
    ):
        middle_s, width_s, sums = _binned(trace.arrival_ns, column)
        lines.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": name,
                "x": _rounded(middle_s),
                "y": _rounded(sums / width_s),
                "line": {"color": colour, "width": 1.5, "shape": "hvh"},
                "hovertemplate": "%{y:,.4~r} tokens/s at %{x:,.0f} s<extra>" + name + "</extra>",
            }
        )
    return _figure(
        lines, {"title": {"text": "s"}}, {"title": {"text": "tokens per s"}, "rangemode": "tozero"}
    )


def _cumulative(trace: Trace) -> Figure:
    lines = []
    shares = np.linspace(0, 1, _POINTS + 1)
    for name, column, colour in (
        ("prompt", trace.prompt_tokens, "$prefill"),
        ("output", trace.output_tokens, "$decode"),
    ):
        lines.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": name,
                "x": _rounded(np.quantile(column, shares)),
                "y": _rounded(shares * 100),
                "line": {"color": colour, "width": 2},
                "hovertemplate": "%{y:.3~g} % up to %{x:,.0f} tokens<extra>" + name + "</extra>",
            }
        )
    return _figure(lines, {"title": {"text": "tokens"}, "type": "log"}, {"title": {"text": "% of requests"}})


def _binned(
    arrival_ns: NDArray[np.int64], weights: NDArray[np.int64] | None
) -> tuple[NDArray[np.float64], float, NDArray[np.float64]]:
    """Return the middles (s), the width (s) and the sums of equal bins over the trace's duration."""
    duration_s = max(float(arrival_ns[-1]) / NS_PER_S, 1e-9)
    sums, edges = np.histogram(arrival_ns / NS_PER_S, _TIME_BINS, (0, duration_s), weights=weights)
    return (edges[:-1] + edges[1:]) / 2, duration_s / _TIME_BINS, sums.astype(np.float64)


def _figure(data: list[dict[str, Any]], xaxis: dict[str, Any], yaxis: dict[str, Any]) -> Figure:
    layout = {
        "height": 16,
        "margin": {"l": 56, "r": 16, "t": 12, "b": 44},
        "showlegend": len(data) > 1,
        "legend": {"orientation": "h", "x": 0, "y": 1.12},
        "xaxis": xaxis,
        "yaxis": yaxis,
    }
    return {"data": data, "layout": layout}


def _rounded(values: NDArray[np.float64]) -> list[float]:
    """Six significant digits are more than a screen shows, and keep the page small."""
    return [float(f"{value:.6g}") for value in values.tolist()]
