"""Splits of the same GPUs side by side: goodput, first token and pace against the ratio."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from simserve.metrics.store import StoredRun
from simserve.report.page import Figure
from simserve.report.stored import short
from simserve.report.words import latency, number

LEAST_SPLITS = 2
"""Different splits from which on a chart against the ratio says something."""


@dataclass(frozen=True)
class Point:
    """One run as a point of the charts."""

    name: str
    prefill: int
    decode: int
    share: float
    """Prefill GPUs / GPUs of both sides; 0 without a split."""
    rate: float
    """Good requests/s; requests/s without an SLO."""
    ttft_p50_ms: float
    ttft_p99_ms: float
    tpot_ms: float


def ratio_points(runs: dict[str, StoredRun]) -> tuple[list[Point], list[Point]]:
    """Return the splits by share of prefill GPUs, and the runs without a split; none if they are too few."""
    found = [point for name, run in runs.items() if (point := _point(name, run)) is not None]
    splits = sorted((point for point in found if point.prefill), key=lambda point: point.share)
    if len({(point.prefill, point.decode) for point in splits}) < LEAST_SPLITS:
        return [], []
    return splits, [point for point in found if not point.prefill]


def _point(name: str, run: StoredRun) -> Point | None:
    whole, pools = run.summary["whole"], run.manifest.get("pools") or []
    if not run.summary["counts"]["completed"] or whole["tpot_ms"]["p50"] is None:
        return None
    sides = {role: [p for p in pools if (p.get("settings") or {}).get("role") == role] for role in _ROLES}
    gpus = {role: sum(_gpus(pool) for pool in some) for role, some in sides.items()}
    total = sum(gpus.values())
    rates = run.summary["rates"]
    goodput = rates["goodput_requests_per_s"]
    return Point(
        name=name,
        prefill=sum(pool["replicas"] for pool in sides["prefill"]),
        decode=sum(pool["replicas"] for pool in sides["decode"]),
        share=gpus["prefill"] / total if total else 0.0,
        rate=(rates["requests_per_s"] if goodput is None else goodput) or 0.0,
        ttft_p50_ms=whole["ttft_ms"]["p50"],
        ttft_p99_ms=whole["ttft_ms"]["p99"],
        tpot_ms=whole["tpot_ms"]["p50"],
    )


_ROLES = ("prefill", "decode")


def _gpus(pool: dict[str, Any]) -> int:
    return pool["replicas"] * pool["tp"] * pool["pp"] * pool.get("dp", 1)


def ratio_charts(splits: list[Point], others: list[Point], slo: bool) -> dict[str, Figure]:
    """Return three charts against the ratio: rate, time to first token, time per token."""
    if not splits:
        return {}
    rate = ("good requests/s" if slo else "requests/s", "$accent", "rate")
    ttft = [("median", "$prefill", "ttft_p50_ms"), ("p99", "$queue", "ttft_p99_ms")]
    return {
        "ratio-rate": _chart(splits, others, [rate], "", log=False),
        "ratio-ttft": _chart(splits, others, ttft, " ms", log=True),
        "ratio-tpot": _chart(splits, others, [("median", "$decode", "tpot_ms")], " ms", log=False),
    }


def _chart(
    splits: list[Point], others: list[Point], lines: list[tuple[str, str, str]], unit: str, log: bool
) -> Figure:
    labels = [f"{point.prefill}p{point.decode}d" for point in splits]
    traces = []
    for words, colour, field in lines:
        values = np.array([getattr(point, field) for point in splits])
        traces.append(_line(labels, values, words, colour, "solid"))
        for other in others:
            level = np.full(len(labels), getattr(other, field))
            traces.append(_line(labels, level, f"{words}, {other.name}", colour, "dash"))
    axis = {"ticksuffix": unit, "rangemode": "tozero"} | ({"type": "log", "dtick": 1} if log else {})
    return {
        "data": traces,
        "layout": {
            "height": 17,
            "xaxis": {"type": "category"},
            "yaxis": axis,
            "showlegend": False,
            "margin": {"t": 10, "l": 60, "r": 14, "b": 36},
        },
    }


def _line(labels: list[str], values: np.ndarray, words: str, colour: str, dash: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines+markers" if dash == "solid" else "lines",
        "name": words,
        "x": labels,
        "y": short(values),
        "line": {"color": colour, "width": 2, "dash": dash},
        "hovertemplate": "%{x}: %{y:,.4~r}<extra>" + words + "</extra>",
    }


def ratio_sentences(splits: list[Point], others: list[Point], slo: bool) -> list[str]:
    """Return which split is best, and from where to where splits beat no split."""
    if not splits:
        return []
    best = max(splits, key=lambda point: (point.rate, -point.ttft_p50_ms))
    what = "goodput" if slo else "throughput"
    lines = [
        f"The best {what} of a split is {number(best.rate)} requests/s, with {best.prefill} prefill and "
        f"{best.decode} decode replicas ({best.name}): median TTFT {latency(best.ttft_p50_ms)}, median TPOT "
        f"{latency(best.tpot_ms)}."
    ]
    for other in others:
        better = [point for point in splits if point.rate > other.rate]
        lines.append(
            f"Without a split ({other.name}) it is {number(other.rate)} requests/s, median TTFT "
            f"{latency(other.ttft_p50_ms)}, median TPOT {latency(other.tpot_ms)}. "
            + _crossover(better, splits)
        )
    return lines


def _crossover(better: list[Point], splits: list[Point]) -> str:
    """Return between which neighbouring ratios the split begins and ceases to pay."""
    if not better:
        return "No ratio of a split beats that here."
    names = [f"{point.prefill}p{point.decode}d" for point in better]
    if len(better) == len(splits):
        return "Every ratio of a split beats that here."
    edges = [
        f"{one.prefill}p{one.decode}d and {two.prefill}p{two.decode}d"
        for one, two in pairwise(splits)
        if (one in better) != (two in better)
    ]
    return f"Better than that: {', '.join(names)}; the crossover lies between {'; '.join(edges)}."
