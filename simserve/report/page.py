"""How a page is made: templates with escaping on, one palette for text and charts, plotly.js packed.

A page extends `base.html.j2` and gets its charts as plain plotly figures (dicts). Colours in figures are
named (`$accent`); the page replaces them by the palette of the reader's colour scheme.
"""

from __future__ import annotations

import base64
import gzip
import json
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FileSystemBytecodeCache, PackageLoader, StrictUndefined
from markupsafe import Markup

from simserve.report.words import FILTERS

Figure = dict[str, Any]

PALETTE: dict[str, dict[str, str]] = {
    "light": {
        "paper": "#ffffff",
        "panel": "#f6f7f9",
        "ink": "#16191d",
        "muted": "#5b6470",
        "rule": "#dde1e6",
        "accent": "#1f5fbf",
        "queue": "#b86e00",
        "prefill": "#1f5fbf",
        "decode": "#0b7f6c",
        "requeue": "#b3364b",
        "limit": "#b3261e",
        "other": "#7a6bb0",
        "sky": "#2b8cc4",
        "olive": "#6f7a12",
    },
    "dark": {
        "paper": "#14171b",
        "panel": "#1c2026",
        "ink": "#e8eaed",
        "muted": "#9aa4b0",
        "rule": "#333a43",
        "accent": "#7fb0ff",
        "queue": "#e8ae55",
        "prefill": "#7fb0ff",
        "decode": "#52c7ae",
        "requeue": "#f08a9b",
        "limit": "#ff8f85",
        "other": "#b5a6ea",
        "sky": "#5fd0f0",
        "olive": "#c3cc5a",
    },
}


def render(template: str, charts: dict[str, Figure], **context: Any) -> str:
    """Return the page made from `template`; `charts` maps element ids to plotly figures."""
    return (
        _environment()
        .get_template(template)
        .render(
            charts=_packed({name: _slim(figure) for name, figure in charts.items()}),
            drawn=set(charts),
            palette=PALETTE,
            palette_json=_script_json(PALETTE),
            plotly_js=Markup(plotly_js()) if charts else "",
            **context,
        )
    )


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("simserve.report"),
        bytecode_cache=_compiled(),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(FILTERS)
    return environment


def _compiled() -> FileSystemBytecodeCache | None:
    """Return where compiled templates are kept: Jinja's own temporary folder, if it can be had."""
    try:
        return FileSystemBytecodeCache()
    except (OSError, RuntimeError):
        return None


@cache
def plotly_js() -> str:
    """Return the charts' library as it stands in every page: see plotly_js/README.md."""
    packed = (files("simserve.report") / "plotly_js" / "plotly-basic.min.js.gz").read_bytes()
    return base64.b64encode(packed).decode()


def _slim(figure: Figure) -> Figure:
    """Return a figure in which an x that an earlier trace has too is only that trace's number."""
    seen: list[Any] = []
    traces = []
    for trace in figure["data"]:
        x = trace.get("x")
        same = next((i for i, one in enumerate(seen) if x is not None and one == x), None)
        seen.append(x)
        traces.append(trace if same is None else {**trace, "x": same})
    return {**figure, "data": traces}


def _packed(value: Any) -> str:
    """Return JSON compressed and in base64, as a page's script unpacks it; a quarter of its length."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _script_json(value: Any) -> Markup:
    """Return JSON that may stand inside a script element, whatever strings it holds."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c"))  # no tag can start in it
