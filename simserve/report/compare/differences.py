"""Pictures of differences: each measure relative to the base, and each request under both runs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa

from simserve.metrics.store import StoredRun
from simserve.report.page import Figure
from simserve.report.stored import Float64, floats, short
from simserve.report.styles import Look, looks
from simserve.report.words import number

MEASURES = (
    "whole.ttft_ms.p50",
    "whole.ttft_ms.p99",
    "whole.tpot_ms.p50",
    "whole.tpot_ms.p99",
    "whole.itl_ms.p99",
    "whole.e2e_ms.p50",
    "whole.e2e_ms.p99",
    "rates.requests_per_s",
    "rates.output_tokens_per_s",
    "rates.goodput_requests_per_s",
    "cost_per_million_output_tokens",
)
"""What the picture of relative differences shows, as far as a comparison has it."""

LEAST, MOST = 1 / 20, 20.0
"""Factors beyond which a difference is drawn at the edge of the picture (the table has its value)."""

PAIRED = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "e2e_ms": "E2E"}

_TICKS = (1, 2, 0.5, 5, 0.2, 10, 0.1, 20, 0.05, 1.5, 0.8, 3, 0.6, 1.25, 1.1, 0.9, 1.05, 0.95)
"""The roundest first."""
_MOST_TICKS = 6
"""As many labels have room beside each other on a phone."""

Row = dict[str, Any]


def relative_differences(table: dict[str, Any]) -> Figure:
    """Return a row per measure: each variant's value over the base's, with its interval if there is one."""
    rows = [row for row in table["measures"] if row["key"] in MEASURES and row["values"][table["base"]]]
    rows.sort(key=lambda row: MEASURES.index(row["key"]))
    variants = [look for look in looks([table["base"], *table["variants"]]) if look.name != table["base"]]
    traces = [_points(rows, look, place, len(variants)) for place, look in enumerate(variants)]
    traces = [trace for trace in traces if trace["x"]]
    if len(rows) < 2 or not traces:
        return {"data": [], "layout": {}}
    ends = [end for trace in traces for end in trace.pop("ends")]
    low, high = min(0.9, *ends), max(1.1, *ends)
    ticks = _ticks(low, high)
    return {
        "data": traces,
        "layout": {
            "height": 5 + len(rows) * (1.1 + 0.5 * len(variants)),
            "xaxis": {
                "type": "log",
                "range": [math.log10(low) - 0.02, math.log10(high) + 0.02],
                "tickvals": ticks,
                "ticktext": [f"{tick:g}×" for tick in ticks],
            },
            "yaxis": {
                "tickvals": list(range(len(rows))),
                "ticktext": [f"{row['label']} {'↓' if row['better'] == 'lower' else '↑'}" for row in rows],
                "range": [len(rows) - 0.4, -0.6],
                "showgrid": False,
                "zeroline": False,
            },
            "shapes": [_base_line()],
            "margin": {"t": 8, "l": 10, "r": 20, "b": 34},
            "showlegend": False,
        },
    }


def _points(rows: list[Row], look: Look, place: int, variants: int) -> dict[str, Any]:
    found = [(i, row, _ratios(row, look.name)) for i, row in enumerate(rows)]
    found = [(i, row, ratios) for i, row, ratios in found if ratios is not None]
    shift = (place - (variants - 1) / 2) * min(0.18, 0.7 / variants)
    middle = np.array([_drawn(ratios[0]) for _, _, ratios in found])
    low = np.array([_drawn(ratios[1]) for _, _, ratios in found])
    high = np.array([_drawn(ratios[2]) for _, _, ratios in found])
    shown = [not ratios[1] < 1 < ratios[2] for _, _, ratios in found]
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "markers",
        "name": look.name,
        "x": short(middle),
        "y": [round(i + shift, 3) for i, _, _ in found],
        "customdata": [f"{row['label']}: {_percent(ratios[0])}" for _, row, ratios in found],
        "hovertemplate": "%{customdata}<extra>" + look.name + "</extra>",
        "marker": {
            "color": f"${look.colour}",
            "size": 9,
            "symbol": [look.marker if one else f"{look.marker}-open" for one in shown],
        },
        "cliponaxis": False,
        "ends": [*low.tolist(), *high.tolist()],
    }
    if (high > low).any():
        trace["error_x"] = {
            "type": "data",
            "symmetric": False,
            "array": short(high - middle),
            "arrayminus": short(middle - low),
            "color": f"${look.colour}",
            "thickness": 1.5,
            "width": 3,
        }
    return trace


def _ratios(row: Row, name: str) -> tuple[float, float, float] | None:
    """Return a variant's value over the base's, and the ends of its interval (itself for a single run)."""
    base, found = row["values"][row_base(row)], row["differences"].get(name)
    if found is None or found["relative"] is None or base is None or base <= 0:
        return None
    middle = 1 + found["relative"]
    low, high = found.get("low"), found.get("high")
    if low is None or high is None:
        return middle, middle, middle
    return middle, 1 + low / base, 1 + high / base


def row_base(row: Row) -> str:
    """Return the name of the run that has no difference: the base."""
    return next(name for name in row["values"] if name not in row["differences"])


def _drawn(ratio: float) -> float:
    return min(max(ratio, LEAST), MOST)


def _ticks(low: float, high: float) -> list[float]:
    """Return factors to label between two, far enough from each other; 1 is always among them."""
    apart = math.log(high / low) / _MOST_TICKS
    kept: list[float] = []
    for tick in _TICKS:
        if low * 0.98 <= tick <= high * 1.02 and all(abs(math.log(tick / one)) >= apart for one in kept):
            kept.append(tick)
    return sorted(kept)


def _percent(ratio: float) -> str:
    if ratio >= 2:
        return f"{number(ratio)}×"
    share = round(100 * (ratio - 1), 1)
    return f"{'−' if share < 0 else '+'}{number(abs(float(share)))} %"


def _base_line() -> dict[str, Any]:
    line = {"color": "$muted", "width": 1}
    return {
        "type": "line",
        "x0": 1,
        "x1": 1,
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "line": line,
        "layer": "below",
    }


def paired_charts(runs: dict[str, StoredRun], table: dict[str, Any]) -> dict[str, Figure]:
    """Return, per latency, the distribution of variant - base over the requests, a line per variant."""
    base = runs[table["base"]].requests
    variants = [
        look
        for look in looks([table["base"], *table["variants"]])
        if look.name != table["base"] and table["paired"].get(look.name)
    ]
    return {
        f"paired-{key.removesuffix('_ms')}": _paired_chart(
            [(look, _changes(base, runs[look.name].requests, key)) for look in variants]
        )
        for key in PAIRED
    }


def _changes(base: pa.Table, variant: pa.Table, key: str) -> Float64:
    change = floats(variant, key) - floats(base, key)
    return np.sort(change[~np.isnan(change)])


_SHARES = np.concatenate([[0.0], np.linspace(0.01, 0.99, 99), [1.0]])


def _paired_chart(lines: list[tuple[Look, Float64]]) -> Figure:
    lines = [(look, change) for look, change in lines if change.size]
    if not lines:
        return {"data": [], "layout": {}}
    ends = [float(np.quantile(change, end)) for _, change in lines for end in (0.02, 0.98)]
    pad = 0.05 * (max(0.0, *ends) - min(0.0, *ends)) or 1.0
    return {
        "data": [
            {
                "type": "scatter",
                "mode": "lines",
                "name": look.name,
                "x": short(np.quantile(change, _SHARES)),
                "y": short(_SHARES * 100),
                "line": {"color": f"${look.colour}", "width": 2, "dash": look.dash, "simplify": False},
                "hovertemplate": "%{y:.3~g} %: %{x:+,.4~r} ms or less<extra>" + look.name + "</extra>",
            }
            for look, change in lines
        ],
        "layout": {
            "height": 17,
            "xaxis": {
                "title": {"text": "variant − base, ms"},
                "range": [min(0.0, *ends) - pad, max(0.0, *ends) + pad],
                "tickformat": ",~r",
                "nticks": 6,
            },
            "yaxis": {"range": [0, 101], "ticksuffix": " %", "dtick": 25},
            "shapes": [{**_base_line(), "x0": 0, "x1": 0}],
            "margin": {"t": 20, "l": 48, "r": 14, "b": 40},
            "showlegend": False,
        },
    }
