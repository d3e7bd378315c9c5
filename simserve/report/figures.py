"""The report's charts as files, in the light palette: SVG of our own drawing, PNG, or what plotly reads.

For PNG plotly draws, through kaleido and a browser that kaleido starts: the extra `figures`, and a
Chrome or Chromium. SVG and `json` need neither.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any, cast

from simserve.errors import ScenarioError, nearest
from simserve.metrics.comparison import read_comparison
from simserve.metrics.store import FIGURE_FORMATS, FIGURES, canonical_json, read_results
from simserve.report.compare.page import comparison_charts
from simserve.report.page import PALETTE, Figure
from simserve.report.run.page import run_charts
from simserve.report.svg import svg

WIDTH_PX = 720
"""A page's text width in print."""
EM_PX = 16
"""Charts state their height in lines of text."""
PNG_SCALE = 2
_LEGEND_PX = 36
_BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def write_figures(folder: Path, format: str) -> list[Path]:
    """Write every chart of a stored run to `figures/` in its folder and return the files, in page order.

    Raises `ScenarioError` if it is not a result folder, or if what draws is missing. The results themselves
    are only read.
    """
    if format not in FIGURE_FORMATS:
        allowed = ", ".join(FIGURE_FORMATS)
        raise ScenarioError(f"--figures {format}: allowed: {allowed}{nearest(format, FIGURE_FORMATS)}")
    charts = {name: _printed(figure) for name, figure in _charts(Path(folder)).items()}
    if not charts:
        raise ScenarioError(f"{folder}: nothing arrived in this run, so there is nothing to draw")
    target = Path(folder) / FIGURES
    files = [target / f"{name}.{format}" for name in charts]
    if format == "json":
        target.mkdir(exist_ok=True)
        for file, figure in zip(files, charts.values(), strict=True):
            file.write_text(canonical_json(figure), encoding="utf-8")
        return files
    if format == "svg":
        target.mkdir(exist_ok=True)
        for file, figure in zip(files, charts.values(), strict=True):
            file.write_text(svg(figure), encoding="utf-8")
        return files
    _check_drawing()
    target.mkdir(exist_ok=True)
    _draw(list(charts.values()), files)
    return files


def _charts(folder: Path) -> dict[str, Figure]:
    found = read_comparison(folder)
    if found is None:
        return run_charts(read_results(folder))
    charts = comparison_charts(found)
    for name, run in found.runs.items():
        charts |= run_charts(run, at=f"{name}-")
    return charts


def inline_svg(figure: Figure) -> str:
    """Return one chart as SVG, to stand in another page."""
    return svg(_printed(figure))


def _printed(figure: Figure) -> Figure:
    """Return a chart of the page as plotly draws it alone: colours named, sizes in pixels, white paper."""
    text = json.dumps(figure)
    for name, colour in sorted(PALETTE["light"].items(), key=lambda pair: -len(pair[0])):
        text = text.replace(f"${name}", colour)
    printed = json.loads(text)
    layout = printed["layout"]
    layout |= {
        "width": WIDTH_PX,
        "height": layout["height"] * EM_PX,
        "paper_bgcolor": PALETTE["light"]["paper"],
        "plot_bgcolor": PALETTE["light"]["paper"],
        "font": {"size": 13, "color": PALETTE["light"]["ink"], "family": "sans-serif"},
        "template": None,
    }
    if "yaxis2" not in layout and len(_named(printed)) > 1:  # on the page, keys stand in the text
        layout |= {"showlegend": True, "legend": {"orientation": "h", "y": -0.2, "yanchor": "top"}}
        layout["margin"]["b"] = layout["margin"].get("b", 0) + _LEGEND_PX
        layout["height"] += _LEGEND_PX
    for key in [key for key in layout if key.startswith(("xaxis", "yaxis"))]:
        layout[key] = {"automargin": True, "gridcolor": PALETTE["light"]["rule"], **layout[key]}
    return printed


def _named(figure: Figure) -> set[str]:
    return {trace["name"] for trace in figure["data"] if trace.get("showlegend", True) and "name" in trace}


def _check_drawing() -> None:
    """Raise `ScenarioError` with what to install."""
    try:
        import kaleido  # noqa: F401
    except ImportError as error:
        raise ScenarioError(
            "--figures png needs kaleido; in your clone: pip install -e '.[figures]'; --figures svg needs "
            "nothing, and the report itself is complete without"
        ) from error
    if _browser() is None:
        raise ScenarioError(
            "--figures png needs a Chrome or Chromium to draw in, and none is on the path: install one, or "
            "set BROWSER_PATH to it; --figures svg needs none"
        )


def _browser() -> str | None:
    return os.environ.get("BROWSER_PATH") or next(filter(None, map(shutil.which, _BROWSERS)), None)


def _draw(charts: list[Figure], files: list[Path]) -> None:
    """Draw all charts in one browser."""
    import plotly.graph_objects as go
    import plotly.io as pio

    os.environ.setdefault("BROWSER_PATH", str(_browser()))
    sizes = {name: [chart["layout"][name] for chart in charts] for name in ("width", "height")}
    figures: Any = [go.Figure(chart) for chart in charts]
    try:
        pio.write_images(figures, cast("Any", files), format="png", scale=PNG_SCALE, **cast("Any", sizes))
    except Exception as error:  # kaleido raises what its browser does
        raise ScenarioError(f"--figures png: the browser did not draw: {error}") from error
