"""One axis of a chart in SVG: from values to pixels, and where its ticks are."""

from __future__ import annotations

import math
from typing import Any

MOST_TICKS = 7


class Axis:
    """A linear, logarithmic or category axis that plotly's settings describe, over pixels [start, end]."""

    def __init__(self, settings: dict[str, Any], values: list[Any], start: float, end: float) -> None:
        """`values` are all that stand on it; they give the range where the settings do not."""
        self.start, self.end = start, end
        self.title = (settings.get("title") or {}).get("text", "")
        self._settings = settings
        self.log = settings.get("type") == "log"
        self.names: list[str] = []
        if settings.get("type") == "category" or any(isinstance(value, str) for value in values):
            self.names = list(dict.fromkeys(str(value) for value in values))
            self.low, self.high = -0.5, len(self.names) - 0.5
            return
        found = settings.get("range")
        self.low, self.high = found or self._own_range([float(v) for v in values if v is not None])

    def _own_range(self, values: list[float]) -> tuple[float, float]:
        if self.log:
            values = [math.log10(value) for value in values if value > 0]
        low, high = min(values, default=0.0), max(values, default=1.0)
        if self._settings.get("rangemode") == "tozero" and not self.log:
            low, high = min(low, 0.0), max(high, 0.0)
        pad = 0.05 * (high - low) or 0.5
        return (low if low == 0 else low - pad), high + pad

    def at(self, value: Any) -> float:
        """Return the pixel of a value."""
        if self.names:
            number = float(self.names.index(str(value)))
        else:
            number = math.log10(max(float(value), 1e-12)) if self.log else float(value)
        return self.start + (number - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self) -> list[tuple[Any, str]]:
        """Return values with their labels."""
        if self.names:
            return [(name, name) for name in self.names]
        if "tickvals" in self._settings:
            return list(zip(self._settings["tickvals"], self._settings["ticktext"], strict=True))
        suffix = self._settings.get("ticksuffix", "")
        values = self._powers() if self.log else self._steps()
        return [(value, f"{value:,.10g}{suffix}") for value in values]

    def _powers(self) -> list[float]:
        low, high = sorted((self.low, self.high))
        wide = high - low > 2.2
        digits = (1,) if wide else (1, 2, 5)
        every = math.ceil((high - low) / MOST_TICKS) if wide else 1
        exponents = range(math.floor(low), math.ceil(high) + 1)
        values = [digit * 10.0**power for power in exponents if power % every == 0 for digit in digits]
        return [value for value in values if low - 1e-9 <= math.log10(value) <= high + 1e-9]

    def _steps(self) -> list[float]:
        low, high = sorted((self.low, self.high))
        step = self._settings.get("dtick")
        if not isinstance(step, int | float):
            rough = (high - low) / min(MOST_TICKS, self._settings.get("nticks") or MOST_TICKS)
            power = 10.0 ** math.floor(math.log10(rough))
            step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
        first = math.ceil(low / step - 1e-9)
        return [round(i * step, 12) for i in range(first, math.floor(high / step + 1e-9) + 1)]
