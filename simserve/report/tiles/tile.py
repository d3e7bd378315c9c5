"""One tile: a label, a value, a note, and a small chart between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from simserve.report.format import NONE, percent
from simserve.report.tiles.spark import parts_bar

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
