"""One tile: a label, a value, a note, and a small chart between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from markupsafe import Markup

from simserve.report.stored import Float64
from simserve.report.words import NONE, percent

# Charts of a finger's width as inline SVG: coloured by the page's palette, read aloud by their label.

WIDTH, HEIGHT = 100.0, 24.0
"""Units of the drawing, which is stretched to the width of its tile."""
MOST_POINTS = 60
"""Points of a line."""
BARS = 28
"""Bars of a distribution."""


def _svg(body: str, label: str) -> Markup:
    start = f'<svg class="spark" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" preserveAspectRatio="none" role="img" '
    return Markup(start) + Markup('aria-label="{}">{}</svg>').format(label, Markup(body))


def course_line(values: Float64, label: str, colour: str = "queue") -> Markup:
    """Return a series over time as a line with the area below it; gaps are left out."""
    if len(values) > MOST_POINTS:  # the highest of neighbours, so that no peak is lost
        edges = np.linspace(0, len(values), MOST_POINTS + 1).astype(int)
        values = np.array([_highest(values[a:b]) for a, b in pairwise(edges)])
    keep = np.flatnonzero(~np.isnan(values))
    if keep.size < 2:
        return Markup("")
    top = max(float(values[keep].max()), 1e-12)
    x = keep / (len(values) - 1) * WIDTH
    y = HEIGHT - 1 - values[keep] / top * (HEIGHT - 3)
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x.tolist(), y.tolist(), strict=True))
    return _svg(
        f'<polygon points="{x[0]:.1f},{HEIGHT:g} {points} {x[-1]:.1f},{HEIGHT:g}" '
        f'fill="var(--{colour})" opacity="0.18"/>'
        f'<polyline points="{points}" fill="none" stroke="var(--{colour})"/>',
        label,
    )


def _highest(values: Float64) -> float:
    return float("nan") if np.isnan(values).all() else float(np.nanmax(values))


def distribution_bars(values: Float64, label: str, limit: float | None = None) -> Markup:
    """Return how values are spread, on a logarithmic axis where they span much; those over a limit apart."""
    values = values[~np.isnan(values)]
    if values.size < 2:
        return Markup("")
    low, high = (float(end) for end in np.quantile(values, (0.002, 0.998)))
    if low == high:
        return Markup("")
    logarithmic = low > 0 and high / low > 10
    edges = np.geomspace(low, high, BARS + 1) if logarithmic else np.linspace(low, high, BARS + 1)
    counts = np.histogram(np.clip(values, low, high), edges)[0]
    heights = counts / counts.max() * (HEIGHT - 2)
    wide = WIDTH / BARS
    paths = {"accent": "", "limit": ""}
    for i, height in enumerate(heights.tolist()):
        if height:
            colour = "limit" if limit is not None and edges[i] >= limit else "accent"
            up = max(height, 0.8)
            paths[colour] += f"M{i * wide:.1f} {HEIGHT:g}v{-up:.1f}h{wide * 0.82:.1f}v{up:.1f}z"
    drawn = (f'<path d="{path}" fill="var(--{colour})"/>' for colour, path in paths.items() if path)
    return _svg("".join(drawn), label)


def share_bar(share: float, target: float | None = None, judged: str = "") -> Markup:
    """Return a share as a bar on its rail, with the target as a tick."""
    colour = {"better": "decode", "worse": "limit"}.get(judged, "accent")
    tick = ""
    if target is not None:
        at = min(target * WIDTH, WIDTH - 0.8)
        tick = f'<rect x="{at:.2f}" y="3" width="0.8" height="18" fill="var(--ink)"/>'
    label = percent(share) + (f", target {percent(target)}" if target is not None else "")
    rail, filled = (
        f'<rect x="0" y="8" width="{width:.2f}" height="8" rx="1" fill="var(--{name})"/>'
        for width, name in ((WIDTH, "rule"), (min(share, 1) * WIDTH, colour))
    )
    return _svg(rail + filled + tick, label)


def parts_bar(parts: Sequence[tuple[str, str, float]]) -> Markup:
    """Return shares beside each other: of each its class in the style sheet, its words and its size."""
    total, at, body = sum(share for *_, share in parts) or 1.0, 0.0, []
    for name, _, share in parts:
        width = share / total * WIDTH
        if width:
            body.append(f'<rect x="{at:.2f}" y="8" width="{width:.2f}" height="8" class="{name}"/>')
        at += width
    return _svg("".join(body), ", ".join(f"{percent(share)} {words}" for _, words, share in parts if share))


BASES = (
    ("measured", "measured"),
    ("interpolated", "interpolated"),
    ("extrapolated", "extrapolated"),
    ("analytic", "estimated"),
)
"""Where step times come from, best first, and what a page calls it."""

JUDGED = {"met": "better", "missed": "worse"}
"""Class of a tile by its verdict."""

NOTHING = Markup("")


@dataclass(frozen=True)
class Tile:
    """What one tile shows."""

    label: str
    value: str
    note: str = ""
    spark: Markup = NOTHING
    """An SVG with a text equivalent of its own."""
    judged: str = ""
    """better, worse or nothing."""
    rows: Sequence[tuple[str, str, str]] = ()
    """Further figures: name, value, and better or nothing."""
    mark: Markup = NOTHING
    """How a run is drawn in the charts below."""
    long: bool = False
    """Words rather than a number: set smaller."""


def basis_tile(shares: dict[str, Any]) -> Tile | None:
    """Return where step times come from, as shares of the simulated busy time; None if that is not known."""
    found = [(name, words, shares.get(name) or 0.0) for name, words in BASES]
    if not any(share for *_, share in found):
        return None
    inside = sum(share for name, _, share in found if name in ("measured", "interpolated"))
    outside = [(words, share) for name, words, share in found if name not in ("measured", "interpolated")]
    note = ", ".join(f"{percent(share)} {words}" for words, share in outside if share > 0)
    return Tile(
        "Measured step times",
        percent(inside) if inside else NONE,
        note or "nothing extrapolated or estimated",
        parts_bar([(f"p-{name}", words, share) for name, words, share in found]),
    )
