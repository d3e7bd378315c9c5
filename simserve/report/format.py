"""Numbers as people read them: three significant digits, no padded zeros, a unit, a dash for no data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simserve.metrics.words import percent as percent_words
from simserve.metrics.words import trimmed
from simserve.units import GIB

NONE = "–"
NBSP = "\u00a0"


def number(value: float | None) -> str:
    """Return 3 significant digits, or all digits of an integer, with thousands separators."""
    if value is None:
        return NONE
    if isinstance(value, int):
        return f"{value:,}"
    size = abs(value)
    if size >= 99.95 or value == 0:
        return f"{value:,.0f}"
    decimals = 1 if size >= 9.995 else 2 if size >= 0.9995 else 3
    return trimmed(f"{value:.{decimals}f}") if size >= 0.0995 else f"{value:.3g}"


def percent(share: float | None) -> str:
    """Return a share in percent; never '100 %' for less than all, nor '0 %' for more than nothing."""
    if share is None:
        return NONE
    return percent_words(share).replace(" ", NBSP)


def money(value: float | None, currency: str = "$") -> str:
    """Return a price with its currency: `$30`, `$0.93`, `30 EUR`; cents where there are any."""
    if value is None:
        return NONE
    if value >= 99.95 or abs(value - round(value)) < 0.005:
        text = f"{value:,.0f}" if value >= 0.995 or value == 0 else f"{value:.3g}"
    else:
        text = f"{value:.2f}" if value >= 0.995 else _cents(value)
    return f"{text}{NBSP}{currency}" if currency[:1].isalpha() else f"{currency}{text}"


def _cents(value: float) -> str:
    """Return a price below 1 with three significant digits, at least two decimals."""
    text = f"{value:.3f}" if value >= 0.0995 else f"{value:.3g}"
    return text[:-1] if len(text) == 5 and text.endswith("0") else text


def latency(value_ms: float | None) -> str:
    """Return a latency with the unit that suits its size."""
    if value_ms is None:
        return NONE
    return f"{in_unit(value_ms, unit_of(value_ms))}{NBSP}{unit_of(value_ms)}"


def unit_of(value_ms: float | None) -> str:
    """Return `ms`, or `s` from one second on."""
    return "s" if value_ms is not None and value_ms >= 1000 else "ms"


def in_unit(value_ms: float | None, unit: str) -> str:
    """Return a latency as a bare number in `unit` (`ms` or `s`)."""
    if value_ms is None:
        return NONE
    return number(float(value_ms) / (1000 if unit == "s" else 1))


def duration(seconds: float | None) -> str:
    """Return a length of time: seconds, minutes or hours."""
    if seconds is None:
        return NONE
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{number(seconds / size)}{NBSP}{unit}"
    return f"{number(float(seconds))}{NBSP}s"


def gibibytes(count: float | None) -> str:
    """Return bytes as a bare number of GiB."""
    if count is None:
        return NONE
    return "< 0.01" if 0 < count < GIB / 100 else f"{count / GIB:,.2f}"


def gigabytes(count: float | None) -> str:
    """Return bytes as a bare number of GB (10^9)."""
    return NONE if count is None else number(count / 1e9)


FILTERS: dict[str, Callable[..., Any]] = {
    "number": number,
    "percent": percent,
    "money": money,
    "latency": latency,
    "in_unit": in_unit,
    "duration": duration,
    "gib": gibibytes,
    "gigabytes": gigabytes,
}
