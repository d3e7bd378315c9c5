"""How far simulated runs are from a measured one, in one sentence."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from simserve.report.difference_words import Row, signed
from simserve.report.effect_words import code
from simserve.report.format import NBSP

_FIGURES = {
    "whole.ttft_ms.mean": "mean TTFT",
    "whole.tpot_ms.mean": "mean TPOT",
    "whole.e2e_ms.mean": "mean E2E",
    "whole.requests_per_s": "requests/s",
}
"""What tells most, by key of the comparison."""


def measured_headline(table: dict[str, Any]) -> Markup:
    """Return how far the other runs are from the measured base, in its most telling figures."""
    rows = {row["key"]: row for row in table["measures"]}
    found = [(words, rows[key]) for key, words in _FIGURES.items() if key in rows]
    parts = []
    for name in table["variants"]:
        words = [
            f"{what} {signed(round(100 * share, 1))}{NBSP}%"
            for what, row in found
            if (share := _share(row, name)) is not None
        ]
        text = ", ".join(words) or "no figure in common"
        parts.append(Markup("{}: {}").format(code(name), text))
    return Markup("Against {}, measured, {}.").format(code(table["base"]), Markup("; ").join(parts))


def _share(row: Row, name: str) -> float | None:
    found = row["differences"][name]
    return found and found["relative"]
