"""The kernel profiles of a GPU as one offline page: what was measured, and how near to the roofline.

Knows plain figures only, nothing of tables or of how latencies are predicted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simserve.report.page import Figure, render

_LINE_HEIGHT = 1.5
"""Height of one line of a map in units of the text."""
_SCALE = "Cividis"
"""Readable with every kind of colour vision, on light and on dark."""


def write_profile_page(
    gpu: str, tables: Sequence[Mapping[str, Any]], maps: Sequence[Mapping[str, Any]], command: str, path: Path
) -> None:
    """Write the page to `path`; the same figures give the same bytes.

    `tables`: op, rows, left_out, covered, backends, sources, each in words or numbers. `maps`: operation,
    x_name, y_name, x, y, efficiency[y][x] (None where nothing was measured) and rows[y][x].
    """
    charts = {f"map-{index}": _chart(one) for index, one in enumerate(maps)}
    page = render(
        "profile.html.j2",
        charts,
        title=f"Kernel profiles of {gpu}",
        gpu=gpu,
        tables=tables,
        maps=[_words(one) for one in maps],
        measured=sum(table["rows"] for table in tables),
        command=command,
    )
    path.write_text(page, encoding="utf-8")


def _chart(one: Mapping[str, Any]) -> Figure:
    is_bytes = one["x_name"] == "bytes"
    x_unit = "" if is_bytes else f" {one['x_name']}"
    heat = {
        "type": "heatmap",
        "x": [_bytes(x) if is_bytes else f"{x:,.0f}" for x in one["x"]],
        "y": [f"{name} " for name in one["y"]],  # with a space, so that numbers stay names
        "z": [
            [None if cell is None else float(f"{cell:.3g}") for cell in line] for line in one["efficiency"]
        ],
        "customdata": one["rows"],
        "zmin": 0,
        "zmax": 1,
        "colorscale": _SCALE,
        "xgap": 1,
        "ygap": 1,
        "hoverongaps": False,
        "hovertemplate": "%{z:.1%} of the roofline<br>%{y}"
        + f"{one['y_name']}, %{{x}}{x_unit}<br>median of %{{customdata:,}} measured<extra></extra>",
        "colorbar": {"tickformat": ".0%", "thickness": 12, "outlinewidth": 0, "dtick": 0.25},
    }
    layout = {
        "height": 6 + _LINE_HEIGHT * len(one["y"]),
        "margin": {"l": 56, "r": 8, "t": 8, "b": 56},
        "xaxis": {"title": {"text": one["x_name"]}, "type": "category", "showgrid": False, "nticks": 16},
        "yaxis": {"title": {"text": one["y_name"]}, "type": "category", "showgrid": False, "nticks": 24},
    }
    return {"data": [heat], "layout": layout}


def _words(one: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is said of a map in text: its size, how full it is, its best cell."""
    cells = [cell for line in one["efficiency"] for cell in line]
    known = [cell for cell in cells if cell is not None]
    return {
        "operation": one["operation"],
        "rows": sum(sum(line) for line in one["rows"]),
        "filled": len(known) / len(cells),
        "best": max(known),
    }


def _bytes(size: float) -> str:
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor:
            return f"{size / factor:g} {unit}"
    return f"{size:g} B"
