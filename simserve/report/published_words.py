"""Published figures beside ours, in words: for the page and for the terminal."""

from __future__ import annotations

from typing import Any

from simserve.report.difference_words import in_unit_words
from simserve.report.format import NBSP, number

FAR = 0.2
"""Ours differs notably from a published figure beyond this share of it."""


def published_words(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows with `published_text` and `ours_text`."""
    return [
        {
            **row,
            "published_text": _text(row["published"], row["unit"]),
            "ours_text": "–" if row["ours"] is None else _text(row["ours"], row["unit"]),
        }
        for row in rows
    ]


def _text(value: float, unit: str) -> str:
    if unit == "ratio":
        return f"{number(float(value))}{NBSP}×"
    return in_unit_words(float(value), unit)
