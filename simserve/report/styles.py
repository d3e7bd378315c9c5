"""Heat maps made of bars: the basic bundle of plotly.js, which keeps pages small, has no others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from simserve.report.page import Figure

# How each run of a comparison is drawn, wherever it appears.

COLOURS = ("ink", "accent", "queue", "decode", "requeue", "other", "sky", "olive")
DASHES = ("solid", "dash", "dot", "dashdot")
MARKERS = ("circle", "diamond", "square", "triangle-up")


class Look(NamedTuple):
    """How a run is drawn wherever it appears."""

    name: str
    colour: str
    """A name of the page's palette."""
    dash: str

    @property
    def marker(self) -> str:
        """The symbol of the run's points: another shape where its colour returns."""
        return MARKERS[DASHES.index(self.dash)]

    @property
    def border(self) -> str:
        """The nearest CSS border style of the line, for keys in the text."""
        return {"solid": "solid", "dot": "dotted"}.get(self.dash, "dashed")


def looks(names: list[str]) -> list[Look]:
    """Return a look for each run: ink is the base's, others return with another dash after seven."""
    base, *colours = COLOURS
    wide = len(colours)
    others = [Look(n, colours[i % wide], DASHES[i // wide % 4]) for i, n in enumerate(names[1:])]
    return [Look(n, base, DASHES[0]) for n in names[:1]] + others


FAINTEST = 0.06
"""Opacity of the least value, so that its cell is not taken for an empty one."""
MOST_TICKS = 24
"""More names than these do not fit beside an axis; every second, third ... is left out then."""


def heat_map(
    across: Sequence[str],
    down: Sequence[str],
    cells: Sequence[Sequence[float | None]],
    *,
    texts: Sequence[Sequence[str]] | None = None,
    hovers: Sequence[Sequence[str]],
    bar: dict[str, Any],
    ends: tuple[float, float] | None = None,
) -> Figure:
    """Return one coloured cell per value; `cells[y][x]` None leaves the paper to be seen.

    `texts` stand in the cells, `hovers` beside the pointer. The colour is
    the fuller the nearer a value is to the upper of `ends` (default: of the values); `bar` is its colour bar.
    """
    places = [(x, y) for y in range(len(down)) for x in range(len(across)) if cells[y][x] is not None]
    values = [cells[y][x] or 0.0 for x, y in places]
    low, high = ends or (min(values), max(values))
    span = (high - low) or 1.0
    shares = [min(max((value - low) / span, 0.0), 1.0) for value in values]
    trace: dict[str, Any] = {
        "type": "bar",
        "orientation": "h",
        "base": [x - 0.5 for x, _ in places],
        "x": [1] * len(places),
        "y": [y for _, y in places],
        "width": 1,
        "marker": {
            "color": "$accent",
            "opacity": [round(FAINTEST + (1 - FAINTEST) * share, 3) for share in shares],
            "line": {"width": 1, "color": "$paper"},
        },
        "hovertext": [hovers[y][x] for x, y in places],
        "hovertemplate": "%{hovertext}<extra></extra>",
        "textposition": "none",
    }
    key = {
        "type": "scatter",
        "mode": "markers",
        "x": [None],
        "y": [None],
        "hoverinfo": "skip",
        "marker": {
            "color": [low],
            "cmin": low,
            "cmax": high,
            "colorscale": [[0, "$panel"], [1, "$accent"]],
            "showscale": True,
            "colorbar": bar,
        },
    }
    if texts is not None:
        trace |= {
            "text": [texts[y][x] for x, y in places],
            "textposition": "inside",
            "insidetextanchor": "middle",
            "textangle": 0,
            "insidetextfont": {
                "color": ["$paper" if share > 0.5 else "$ink" for share in shares],
            },
        }
    layout = {
        "barmode": "overlay",
        "bargap": 0,
        "xaxis": _names(across),
        "yaxis": _names(down),
        "showlegend": False,
    }
    return {"data": [trace, key], "layout": layout}


def _names(names: Sequence[str]) -> dict[str, Any]:
    every = -(-len(names) // MOST_TICKS)
    return {
        "tickvals": list(range(0, len(names), every)),
        "ticktext": list(names[::every]),
        "range": [-0.5, len(names) - 0.5],
        "showgrid": False,
        "zeroline": False,
    }
