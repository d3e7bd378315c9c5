"""The kernel profiles of a GPU as one offline page: what was measured, and how near to the roofline.

Knows plain figures only, nothing of tables or of how latencies are predicted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simserve.report.page import Figure, render
from simserve.report.styles import heat_map

_LINE_HEIGHT = 1.5
"""Height of one line of a map in units of the text."""


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
    x_names = [_bytes(x) if is_bytes else f"{x:,.0f}" for x in one["x"]]
    cells = [[None if cell is None else float(f"{cell:.3g}") for cell in line] for line in one["efficiency"]]
    hovers = [
        [
            f"{cell or 0:.1%} of the roofline<br>{y} {one['y_name']}, {x}{x_unit}<br>median of {n:,} measured"
            for x, cell, n in zip(x_names, line, counts, strict=True)
        ]
        for y, line, counts in zip(one["y"], cells, one["rows"], strict=True)
    ]
    bar = {"tickformat": ".0%", "thickness": 12, "outlinewidth": 0, "dtick": 0.25}
    figure = heat_map(x_names, one["y"], cells, hovers=hovers, bar=bar, ends=(0, 1))
    layout = figure["layout"]
    layout["height"] = 6 + _LINE_HEIGHT * len(one["y"])
    layout["margin"] = {"l": 56, "r": 8, "t": 8, "b": 56}
    layout["xaxis"]["title"] = {"text": one["x_name"]}
    layout["yaxis"]["title"] = {"text": one["y_name"]}
    return figure


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


# What a measured profile is worth, as one offline page. Knows plain figures only.

_KINDS = (
    ("measured", "$decode"),
    ("interpolated", "$accent"),
    ("extrapolated", "$queue"),
    ("analytic", "$limit"),
)


KNOWN = 0.95
"""Share of a step's time that must be measured or interpolated for the step to count as known."""


def write_check_page(found: Mapping[str, Any], command: str, path: Path) -> None:
    """Write the page to `path`; the same figures give the same bytes.

    `found` as `profiler.checking.check.Check.plain` returns it.
    """
    charts = {
        f"steps-{index}": _shares(steps) for index, steps in enumerate(found["coverage"].values()) if steps
    }
    known = [
        step["shares"]["measured"] + step["shares"]["interpolated"]
        for steps in found["coverage"].values()
        for step in steps
    ]
    page = render(
        "profile_check.html.j2",
        charts,
        title=f"Profile of {found['gpu']}",
        found=found,
        rows=sum(found["tables"].values()),
        steps=len(known),
        known=sum(share >= KNOWN for share in known),
        command=command,
    )
    path.write_text(page, encoding="utf-8")


def _shares(steps: list[Mapping[str, Any]]) -> Figure:
    """Return stacked bars: share of each step's time by where it comes from."""
    names = [step["step"] for step in steps][::-1]
    data = [
        {
            "type": "bar", "orientation": "h", "name": kind, "y": names,
            "x": [round(step["shares"][kind], 4) for step in steps][::-1],
            "marker": {"color": colour}, "hovertemplate": "%{y}: %{x:.0%} " + kind + "<extra></extra>",
        }
        for kind, colour in _KINDS
    ]  # fmt: skip
    layout = {
        "barmode": "stack",
        "height": 6 + 2.2 * len(steps),
        "margin": {"l": 280, "r": 8, "t": 8, "b": 40},
        "xaxis": {"tickformat": ".0%", "range": [0, 1]},
        "legend": {"orientation": "h", "y": -0.2},
    }
    return {"data": data, "layout": layout}
