"""A chart of the report as SVG, without a browser: the kinds of traces that the report uses, and no others.

The chart comes as plotly reads it (see `figures._printed`): lines, markers, filled areas, stacked areas and
horizontal bars, whiskers, straight shapes, notes, and panels that share one axis.
"""

from __future__ import annotations

import math
import re
from html import escape
from typing import Any

from simserve.report.page import Figure

# One axis of a chart in SVG: from values to pixels, and where its ticks are.

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


_DASHES = {"dash": "6 4", "dot": "2 3", "dashdot": "6 3 2 3"}
_LEFT_PX, _RIGHT_PX, _TOP_PX, _BOTTOM_PX = 58.0, 16.0, 26.0, 48.0
_CLIP = 'clip-path="url(#plot)"'
"""Curves may go on beyond the range that is shown."""
_CHARACTER_PX = 6.4
_LINE_PX = 14.0

Trace = dict[str, Any]


def svg(figure: Figure) -> str:
    """Return the chart as a document; raises `ValueError` for a kind of trace that it does not know."""
    return _Drawing(figure).document()


class _Drawing:
    def __init__(self, figure: Figure) -> None:
        self.layout, self.traces = figure["layout"], _stacked(figure["data"])
        self.width, self.height = float(self.layout["width"]), float(self.layout["height"])
        self.ink = self.layout["font"]["color"]
        self.out: list[str] = []
        labels = [str(y) for t in self.traces for y in t.get("y", []) if isinstance(y, str)]
        labels += self.layout.get("yaxis", {}).get("ticktext", [])
        widest = max((len(part) for label in labels for part in label.split("<br>")), default=0)
        self.left = max(_LEFT_PX, 14 + widest * _CHARACTER_PX)
        legend = 22.0 if self.layout.get("showlegend") else 0.0
        self.top, self.bottom = _TOP_PX, self.height - _BOTTOM_PX - legend
        self.right = self.width - _RIGHT_PX
        xs = [x for trace in self.traces for x in trace.get("x", [])]
        bars = [sum(xs) for xs in _columns(self.traces)]
        self.x = Axis(self.layout.get("xaxis", {}), xs + bars, self.left, self.right)
        self.ys = {name: self._y_axis(name) for name in {t.get("yaxis", "y") for t in self.traces}}

    def _y_axis(self, name: str) -> Axis:
        settings = self.layout.get(name.replace("y", "yaxis"), {})
        low, high = settings.get("domain", (0.0, 1.0))
        span = self.bottom - self.top
        values = [y for t in self.traces if t.get("yaxis", "y") == name for y in t.get("y", [])]
        return Axis(settings, values, self.bottom - low * span, self.bottom - high * span)

    def document(self) -> str:
        """Return everything, from the back to the front."""
        for name in sorted(self.ys, key=lambda name: int(name[1:] or 1)):
            self._grid(self.ys[name])
        self._x_grid()
        for shape in self.layout.get("shapes", []):
            self._shape(shape)
        for trace in self.traces:
            if trace["type"] == "bar":
                self._bar(trace)
            elif trace["type"] == "scatter":
                self._scatter(trace)
            else:
                raise ValueError(f"a trace of type {trace['type']} cannot be drawn without a browser")
        for note in self.layout.get("annotations", []):
            self._note(note)
        if self.layout.get("showlegend"):
            self._legend()
        body = "\n".join(self.out)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width:g}" height="{self.height:g}" '
            f'viewBox="0 0 {self.width:g} {self.height:g}" font-family="sans-serif" font-size="12">\n'
            f'<clipPath id="plot"><rect x="{self.left:.1f}" y="{self.top - 4:.1f}" '
            f'width="{self.right - self.left:.1f}" height="{self.bottom - self.top + 8:.1f}"/></clipPath>\n'
            f'<rect width="100%" height="100%" fill="{self.layout["paper_bgcolor"]}"/>\n{body}\n</svg>\n'
        )

    def _grid(self, axis: Axis) -> None:
        rule = self.layout.get("yaxis", {}).get("gridcolor", "#ddd")
        for value, label in axis.ticks():
            at = axis.at(value)
            if self.layout.get("yaxis", {}).get("showgrid") is not False:
                self._line(self.left, at, self.right, at, rule)
            for i, part in enumerate(label.split("<br>")):
                shift = 4 + (i - (label.count("<br>")) / 2) * _LINE_PX
                self._text(self.left - 6, at + shift, part, "end")
        if axis.title:
            middle = (axis.start + axis.end) / 2
            self.out.append(
                f'<text x="13" y="{middle:.1f}" fill="{self.ink}" text-anchor="middle" '
                f'transform="rotate(-90 13 {middle:.1f})">{escape(axis.title)}</text>'
            )

    def _x_grid(self) -> None:
        rule = self.layout.get("xaxis", {}).get("gridcolor", "#ddd")
        for value, label in self.x.ticks():
            at = self.x.at(value)
            for axis in self.ys.values():
                self._line(at, axis.start, at, axis.end, rule)
            self._text(at, self.bottom + 16, label, "middle")
        if self.x.title:
            self._text((self.left + self.right) / 2, self.bottom + 34, self.x.title, "middle")

    def _shape(self, shape: dict[str, Any]) -> None:
        x0, x1 = self.x.at(shape["x0"]), self.x.at(shape["x1"])
        if shape["type"] == "rect":
            height = self.bottom - self.top
            self.out.append(
                f'<rect x="{x0:.1f}" y="{self.top:.1f}" width="{x1 - x0:.1f}" height="{height:.1f}" '
                f'fill="{shape["fillcolor"]}" opacity="{shape["opacity"]}"/>'
            )
        else:
            line = shape["line"]
            self._line(x0, self.top, x1, self.bottom, line["color"], line["width"], line.get("dash", ""))

    def _scatter(self, trace: Trace) -> None:
        y = self.ys[trace.get("yaxis", "y")]
        points = [
            (self.x.at(a), y.at(b))
            for a, b in zip(trace["x"], trace["y"], strict=True)
            if a is not None and b is not None
        ]
        mode = trace.get("mode", "lines")
        if "fill" in trace:
            edge = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
            opacity = trace.get("opacity", 0.5)
            self.out.append(
                f'<polygon points="{edge}" fill="{trace["fillcolor"]}" opacity="{opacity}" {_CLIP}/>'
            )
        if "lines" in mode and trace.get("line", {}).get("width"):
            line = trace["line"]
            path = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
            dash = _dash(line.get("dash", ""))
            self.out.append(
                f'<polyline points="{path}" fill="none" stroke="{line.get("color", self.ink)}" '
                f'stroke-width="{line["width"]}"{dash} {_CLIP}/>'
            )
        if "markers" in mode:
            self._markers(trace, points, y)
        if "text" in mode:
            places = trace.get("textposition", "top center")
            for i, ((a, b), words) in enumerate(zip(points, trace["text"], strict=True)):
                place = places[i] if isinstance(places, list) else places
                below = place.startswith("bottom")
                self._text(a, b + (18 if below else -9), words, "middle")

    def _markers(self, trace: Trace, points: list[tuple[float, float]], y: Axis) -> None:
        marker = trace.get("marker", {})
        colours, symbols = marker.get("color", self.ink), marker.get("symbol", "circle")
        for i, (a, b) in enumerate(points):
            colour = colours[i] if isinstance(colours, list) else colours
            symbol = symbols[i] if isinstance(symbols, list) else symbols
            self._whiskers(trace, i, b)
            fill = self.layout["paper_bgcolor"] if symbol.endswith("open") else colour
            radius = marker.get("size", 6) / 2
            self.out.append(
                f'<circle cx="{a:.1f}" cy="{b:.1f}" r="{radius}" fill="{fill}" stroke="{colour}"/>'
            )

    def _whiskers(self, trace: Trace, i: int, at: float) -> None:
        for name, axis in (("error_x", self.x), ("error_y", self.ys[trace.get("yaxis", "y")])):
            if name not in trace:
                continue
            error, value = trace[name], trace[name[-1]][i]
            low, high = axis.at(value - error["arrayminus"][i]), axis.at(value + error["array"][i])
            if name == "error_x":
                self._line(low, at, high, at, error["color"], 1.5)
            else:
                middle = self.x.at(trace["x"][i])
                self._line(middle, low, middle, high, error["color"], 1.5)

    def _bar(self, trace: Trace) -> None:
        """Draw the pieces of stacked horizontal bars; the pieces before them have been drawn already."""
        y = self.ys["y"]
        half = abs(y.end - y.start) / max(len(y.names), 1) * 0.32
        for name, size, before in zip(trace["y"], trace["x"], trace["before"], strict=True):
            x0, x1, middle = self.x.at(before), self.x.at(before + (size or 0)), y.at(name)
            self.out.append(
                f'<rect x="{x0:.1f}" y="{middle - half:.1f}" width="{max(x1 - x0, 0):.1f}" '
                f'height="{2 * half:.1f}" fill="{trace["marker"]["color"]}"/>'
            )

    def _note(self, note: dict[str, Any]) -> None:
        if note.get("xref") == "paper":
            x = self.left + note["x"] * (self.right - self.left)
        else:
            x = self.x.at(10.0 ** note["x"] if self.x.log else note["x"])
        y = self.bottom - note["y"] * (self.bottom - self.top) - 5
        anchor = "start" if note.get("xanchor") == "left" else "middle"
        colour = note.get("font", {}).get("color", self.ink)
        words = _spans(note["text"])
        self.out.append(
            f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}">{words}</text>'
        )

    def _legend(self) -> None:
        x, y = self.left, self.height - 12
        for name, trace in {
            t["name"]: t for t in self.traces if t.get("showlegend", True) and "name" in t
        }.items():
            colour = (trace.get("line") or trace.get("marker") or {}).get("color", self.ink)
            if isinstance(colour, list):
                continue
            self._line(x, y - 4, x + 18, y - 4, colour, 3, trace.get("line", {}).get("dash", ""))
            self._text(x + 24, y, name, "start")
            x += 40 + len(name) * _CHARACTER_PX

    def _line(
        self, x0: float, y0: float, x1: float, y1: float, colour: str, width: float = 1, dash: str = ""
    ) -> None:
        self.out.append(
            f'<line x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}" stroke="{colour}" '
            f'stroke-width="{width}"{_dash(dash)}/>'
        )

    def _text(self, x: float, y: float, words: str, anchor: str) -> None:
        self.out.append(
            f'<text x="{x:.1f}" y="{y:.1f}" fill="{self.ink}" text-anchor="{anchor}">{escape(words)}</text>'
        )


def _dash(name: str) -> str:
    return f' stroke-dasharray="{_DASHES[name]}"' if name in _DASHES else ""


def _spans(text: str) -> str:
    """Return plotly's small HTML as SVG text: bold, and coloured squares."""
    text = text.replace("<b>", '<tspan font-weight="bold">').replace("</b>", "</tspan>")
    text = re.sub(r'<span style="color:([^"]+)">', r'<tspan fill="\1">', text).replace("</span>", "</tspan>")
    return text.replace("   ", " \u00a0 ").replace("  ", " \u00a0")


def _columns(traces: list[Trace]) -> list[list[float]]:
    """Return the pieces of each horizontal bar."""
    bars: dict[str, list[float]] = {}
    for trace in traces:
        if trace["type"] == "bar":
            for name, size in zip(trace["y"], trace["x"], strict=True):
                bars.setdefault(name, []).append(size or 0.0)
    return list(bars.values())


def _stacked(traces: list[Trace]) -> list[Trace]:
    """Return the traces with what plotly would add up: areas of a stack, and bars upon each other."""
    tops: dict[str, list[float]] = {}
    sums: dict[str, float] = {}
    found = []
    for trace in traces:
        if "stackgroup" in trace:
            below = tops.get(trace["stackgroup"], [0.0] * len(trace["y"]))
            above = [low + (y or 0.0) for low, y in zip(below, trace["y"], strict=True)]
            tops[trace["stackgroup"]] = above
            found.append(
                trace
                | {"x": [*trace["x"], *trace["x"][::-1]], "y": [*above, *below[::-1]], "fill": "toself"}
                | {"fillcolor": trace["line"]["color"], "opacity": 0.5}
            )
        elif trace["type"] == "bar":
            before = [sums.get(name, 0.0) for name in trace["y"]]
            for name, size in zip(trace["y"], trace["x"], strict=True):
                sums[name] = sums.get(name, 0.0) + (size or 0.0)
            found.append(trace | {"before": before})
        else:
            found.append(trace)
    return found
