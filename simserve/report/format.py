"""Numbers as people read them: three significant digits, a unit, and a dash for 'no data'."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
    return f"{value:.{decimals}f}" if size >= 0.0995 else f"{value:.3g}"


def percent(share: float | None) -> str:
    """Return a share in percent; never '100 %' for less than all, nor '0 %' for more than nothing."""
    if share is None:
        return NONE
    text = ""
    for decimals in (1, 2, 3, 4):
        text = f"{share * 100:.{decimals}f}"
        if not (0 < share < 1) or float(text) not in (0.0, 100.0):
            break
    return f"{text}{NBSP}%"


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
    "latency": latency,
    "in_unit": in_unit,
    "duration": duration,
    "gib": gibibytes,
    "gigabytes": gigabytes,
}
