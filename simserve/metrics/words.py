"""Figures as the texts of a result say them."""

from __future__ import annotations


def percent(share: float) -> str:
    """Return a share in percent; never '100 %' for less than all, nor '0 %' for more than nothing."""
    text = ""
    for decimals in (1, 2, 3, 4):
        text = f"{share * 100:.{decimals}f}"
        if not (0 < share < 1) or float(text) not in (0.0, 100.0):
            break
    return f"{trimmed(text)} %"


def trimmed(number: str) -> str:
    """Return a number without zeros that say nothing: `50.0` is 50."""
    return number.rstrip("0").rstrip(".") if "." in number else number
