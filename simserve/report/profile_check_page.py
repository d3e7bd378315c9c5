"""What a measured profile is worth, as one offline page. Knows plain figures only."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simserve.report.page import Figure, render

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
