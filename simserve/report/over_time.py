"""The run over time: arrivals, requests, KV use and step sizes on one axis, in equal bins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from simserve.metrics.intervals import held, totals
from simserve.report.page import Figure
from simserve.report.stored import Float64, Int64, equals, short, stamps
from simserve.units import NS_PER_S

BINS = 300

Line = tuple[str, str, Float64]
"""(name, colour, values)"""


@dataclass(frozen=True)
class Course:
    """The run over time, in equal bins; all series are float64[bins]."""

    time_s: Float64
    """Middle of each bin."""
    arrivals_per_s: Float64
    completions_per_s: Float64
    waiting: Float64
    """Arrived and never scheduled yet."""
    running: Float64
    """Scheduled and not finished."""
    kv_use: dict[str, Float64]
    """Share of usable blocks held, by replica."""
    prefill_per_step: Float64
    decode_per_step: Float64


def course(
    requests: pa.Table, timeline: pa.Table, kv_blocks: dict[str, int], start_ns: int, end_ns: int
) -> Course:
    """Return the run over time; `kv_blocks` are the usable blocks by replica."""
    edges = np.linspace(start_ns, max(end_ns, start_ns + 1), BINS + 1)
    width_s = (edges[1] - edges[0]) / NS_PER_S
    arrival, scheduled = stamps(requests, "arrival_ns"), stamps(requests, "first_scheduled_ns")
    last = stamps(requests, "last_token_ns")
    refused, done = equals(requests["status"], "refused"), equals(requests["status"], "completed")
    queued = (arrival >= 0) & ~refused
    started = np.where(scheduled >= 0, scheduled, end_ns)
    finished = np.where(done, last, end_ns)
    steps = _amount(timeline, "steps", edges)
    return Course(
        time_s=(edges[:-1] + edges[1:]) / 2 / NS_PER_S,
        arrivals_per_s=np.histogram(arrival[arrival >= 0], edges)[0] / width_s,
        completions_per_s=np.histogram(last[done], edges)[0] / width_s,
        waiting=_present(arrival[queued], started[queued], edges),
        running=_present(scheduled[scheduled >= 0], finished[scheduled >= 0], edges),
        kv_use=_kv_use(timeline, kv_blocks, edges),
        prefill_per_step=_per_step(_amount(timeline, "prefill_tokens", edges), steps),
        decode_per_step=_per_step(_amount(timeline, "decode_tokens", edges), steps),
    )


def _present(start: Int64, end: Int64, edges: Float64) -> Float64:
    """Return the mean number of requests between their start and end, per bin."""
    length = np.maximum(end - start, 0).astype(np.float64)
    some = length > 0
    return totals(start[some], end[some], length[some], edges) / np.diff(edges)


def _amount(timeline: pa.Table, name: str, edges: Float64) -> Float64:
    start, end = timeline["start_ns"].to_numpy(), timeline["end_ns"].to_numpy()
    return totals(start, end, timeline[name].to_numpy(), edges)


def _per_step(tokens: Float64, steps: Float64) -> Float64:
    """Return tokens / steps; 0 in idle bins, whose sums are only nearly zero."""
    return np.divide(tokens, steps, out=np.zeros_like(steps), where=steps > 1e-3)


def _kv_use(timeline: pa.Table, kv_blocks: dict[str, int], edges: Float64) -> dict[str, Float64]:
    start, end = timeline["start_ns"].to_numpy(), timeline["end_ns"].to_numpy()
    used = timeline["kv_used_blocks"].to_numpy()
    shares = {}
    for name, blocks in kv_blocks.items():
        mine = equals(timeline["replica"], name)
        shares[name] = held(start[mine], end[mine], used[mine], edges) / np.diff(edges) / max(blocks, 1)
    return shares


def over_time(run: Course, steady: tuple[float, float] | None) -> Figure:
    """Arrivals, requests, KV use and step sizes on one time axis."""
    unit, scale = _time_unit(float(run.time_s[-1]))
    time = short(run.time_s / scale)
    layout: dict[str, Any] = {
        "height": 44,
        "hovermode": "x unified",
        "showlegend": False,
        "margin": {"t": 28, "l": 56, "r": 14, "b": 44},
        "annotations": [],
        "xaxis": {"title": {"text": f"time, {unit}"}, "anchor": "y4", "range": [time[0], time[-1]]},
        "shapes": [] if steady is None else [_shade(steady[0] / scale, steady[1] / scale)],
    }
    traces = []
    for row, (title, lines) in enumerate(_panels(run).items()):
        axis = "y" if row == 0 else f"y{row + 1}"
        top = 1 - row * 0.26
        layout[axis.replace("y", "yaxis")] = {
            "domain": [top - 0.205, top],
            "rangemode": "tozero",
            "nticks": 5,
        }
        layout["annotations"].append(_panel_title(title, lines, top))
        traces += [_time_line(time, line, axis, filled=row == 3) for line in lines]
    return {"data": traces, "layout": layout}


def _panels(run: Course) -> dict[str, list[Line]]:
    rates = (run.arrivals_per_s, run.completions_per_s)
    tokens = (run.prefill_per_step, run.decode_per_step)
    return {
        "requests/s": [("arrivals", "$muted", rates[0]), ("completions", "$decode", rates[1])],
        "requests": [("running", "$prefill", run.running), ("waiting", "$queue", run.waiting)],
        "KV use, %": _kv_lines(list(run.kv_use.values())),
        "tokens per step": [("prefill", "$prefill", tokens[0]), ("decode", "$decode", tokens[1])],
    }


def _kv_lines(shares: list[np.ndarray]) -> list[Line]:
    if not shares:
        return []
    percent = np.array(shares) * 100
    if len(shares) == 1:
        return [("replica", "$accent", percent[0])]
    return [("mean", "$accent", percent.mean(axis=0)), ("fullest replica", "$queue", percent.max(axis=0))]


def _panel_title(title: str, lines: list[Line], top: float) -> dict[str, Any]:
    keys = "  ".join(f'<span style="color:{colour}">■</span> {name}' for name, colour, _ in lines)
    return {
        "text": f"<b>{title}</b>   {keys}",
        "x": 0,
        "xref": "paper",
        "xanchor": "left",
        "y": top,
        "yref": "paper",
        "yanchor": "bottom",
        "showarrow": False,
    }


def _time_line(time: list[float], line: Line, axis: str, filled: bool) -> dict[str, Any]:
    name, colour, values = line
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": time,
        "y": short(values),
        "yaxis": axis,
        "line": {"color": colour, "width": 1.5},
        "hovertemplate": "%{y:,.4~g}",
    }
    if filled:
        trace |= {"stackgroup": "steps", "line": {"color": colour, "width": 0.5}}
    return trace


def _shade(start: float, end: float) -> dict[str, Any]:
    box = {"type": "rect", "xref": "x", "x0": start, "x1": end, "yref": "paper", "y0": 0, "y1": 1}
    return {**box, "fillcolor": "$muted", "opacity": 0.07, "line": {"width": 0}, "layer": "below"}


def _time_unit(longest_s: float) -> tuple[str, float]:
    if longest_s >= 3 * 3600:
        return "h", 3600.0
    return ("min", 60.0) if longest_s >= 600 else ("s", 1.0)
