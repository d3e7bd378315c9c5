"""The tiles of one run: verdict, goodput, latencies with their spread, queue, cost, limit, and the basis."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from markupsafe import Markup

from simserve.metrics.store import StoredRun
from simserve.metrics.utilisation import room_words
from simserve.report.compare.settings import signed
from simserve.report.stored import Band, completed, floats
from simserve.report.styles import looks
from simserve.report.tiles.tile import JUDGED, Tile, basis_tile, course_line, distribution_bars, share_bar
from simserve.report.words import complete, figure_of, latency, money, number, offered_per_s, percent

# A tile per run of a comparison: its verdict, then the figures by which runs are chosen.

CLEAR = 0.02
"""Relative lead from which on a figure is marked as the best."""


class _Figure(NamedTuple):
    words: str
    key: str
    pick: Any
    """min or max: which of two is better."""


_GOODPUT = _Figure("goodput/s", "rates.goodput_requests_per_s", max)
_THROUGHPUT = _Figure("requests/s", "rates.requests_per_s", max)
_FIGURES = (
    _GOODPUT,
    _THROUGHPUT,
    _Figure("TTFT p99", "whole.ttft_ms.p99", min),
    _Figure("TPOT p50", "whole.tpot_ms.p50", min),
    _Figure("ITL p99", "whole.itl_ms.p99", min),
    _Figure("cost/M", "cost_per_million_output_tokens", min),
)
"""Goodput stands for the throughput where there is an SLO."""


def compare_tiles(runs: Mapping[str, StoredRun], others: Collection[str] = ()) -> list[Tile]:
    """Return a tile per run; `others` carry other loads than the base, and are best at nothing."""
    values = {
        figure: {name: figure_of(run.summary, figure.key) for name, run in runs.items()}
        for figure in _FIGURES
    }
    told = [figure for figure, found in values.items() if any(one is not None for one in found.values())]
    if _GOODPUT in told:
        told = [figure for figure in told if figure is not _THROUGHPUT]
    best = {
        figure: _best({n: v for n, v in values[figure].items() if n not in others}, figure.pick)
        for figure in told
    }
    tiles = []
    for look in looks(list(runs)):
        name, run = look.name, runs[look.name]
        rows = [
            (figure.words, _text(figure, values[figure][name], run), "better" * (best[figure] == name))
            for figure in told
        ]
        mark = Markup('<span class="line" style="border-top: 3px {} var(--{})"></span>')
        verdict = run.summary.get("slo_verdict") or {"outcome": "", "kept": None, "target": None}
        word, share = verdict["outcome"], verdict["kept"]
        overloaded = run.summary["stability"]["verdict"] == "unstable"
        kind = "worse" if overloaded else JUDGED.get(word, "")
        tiles.append(
            Tile(
                name,
                f"SLO {word}" if word else "overloaded" if overloaded else "",
                "overloaded" if overloaded and word else "",
                share_bar(share, verdict["target"], kind) if share is not None else Markup(""),
                kind,
                [("within SLO", percent(share), "")] * (share is not None) + rows,
                mark.format(look.border, look.colour),
                long=True,
            )
        )
    return tiles


def _text(figure: _Figure, value: float | None, run: StoredRun) -> str:
    if figure.key.startswith("cost"):
        return money(value, complete(run.manifest)["currency"])
    return latency(value) if "_ms" in figure.key else number(value)


def _best(values: Mapping[str, float | None], pick: Any) -> str | None:
    """Return the run that leads clearly; None where several are about as good."""
    known = {name: value for name, value in values.items() if value}
    if len(known) < 2:
        return None
    first = pick(known, key=lambda name: known[name])
    second = pick(known[name] for name in known if name != first)
    return first if abs(known[first] - second) >= CLEAR * max(abs(second), abs(known[first])) else None


def run_tiles(run: StoredRun, manifest: dict[str, Any], curves: Mapping[str, Band]) -> list[Tile]:
    """Return the tiles of a run, most important first; `curves` are its series over time."""
    summary = run.summary
    done = completed(run)
    found = [
        _slo(summary),
        _rate(summary, manifest),
        _latency(summary, "ttft_ms", "TTFT", done),
        _latency(summary, "tpot_ms", "TPOT", done),
        _queue(summary, curves),
        _cost(summary, manifest),
        _limit(summary),
        basis_tile(summary["provenance"]),
    ]
    return [tile for tile in found if tile is not None]


def _slo(summary: dict[str, Any]) -> Tile | None:
    verdict = summary.get("slo_verdict")
    if verdict is None:
        return None
    judged, kept, target = JUDGED.get(verdict["outcome"], ""), verdict["kept"], verdict["target"]
    if kept is None:
        return Tile("SLO", verdict["outcome"], verdict["text"], judged=judged)
    note = f"{percent(kept)} within the limits, target {percent(target)}"
    return Tile("SLO", verdict["outcome"], note, share_bar(kept, target, judged), judged)


def _rate(summary: dict[str, Any], manifest: dict[str, Any]) -> Tile:
    good, served = (
        figure_of(summary, f"rates.{key}") for key in ("goodput_requests_per_s", "requests_per_s")
    )
    rate, label = (served, "Throughput") if good is None else (good, "Goodput")
    asked = offered_per_s(summary, manifest.get("workload") or {})
    label += ", requests/s"
    if asked is None or rate is None:
        return Tile(label, number(rate))
    return Tile(label, number(rate), f"of {number(asked)} offered", share_bar(rate / asked))


def _latency(summary: dict[str, Any], key: str, name: str, done: pa.Table) -> Tile:
    p99, median = figure_of(summary, f"whole.{key}.p99"), figure_of(summary, f"whole.{key}.p50")
    limit = ((summary["whole"]["slo"] or {"limits": {}})["limits"]).get(key)
    note = f"median {latency(median)}" + (f", limit {latency(limit)}" if limit else "")
    spoken = f"Distribution of {name}: median {latency(median)}, p99 {latency(p99)}"
    return Tile(f"{name}, p99", latency(p99), note, distribution_bars(floats(done, key), spoken, limit))


_QUEUES = {"stable": "stable", "unstable": "growing", "too short": "run too short"}


def _queue(summary: dict[str, Any], curves: Mapping[str, Band]) -> Tile:
    word = summary["stability"]["verdict"]
    value, judged = _QUEUES.get(word) or str(word), "worse" if word == "unstable" else ""
    waiting = curves.get("waiting")
    if waiting is None or np.isnan(waiting.mean).all():
        return Tile("Queue", value, judged=judged, long=True)
    peak = float(np.nanmax(waiting.mean))
    note = f"{number(round(peak, 1))} waiting at the peak" if peak >= 0.05 else "nobody waits"
    spark = course_line(waiting.mean, f"Waiting requests over time, {number(round(peak, 1))} at the peak")
    return Tile("Queue", value, note, spark, judged, long=True)


def _cost(summary: dict[str, Any], manifest: dict[str, Any]) -> Tile | None:
    cost, currency = figure_of(summary, "cost_per_million_output_tokens"), manifest["currency"]
    if cost is None:
        return None
    return Tile(
        "Cost per million output tokens",
        money(cost, currency),
        f"{money(summary['price_per_hour'], currency)}/h",
    )


def _limit(summary: dict[str, Any]) -> Tile | None:
    limits = summary["limits"]
    if not limits:
        return None
    distinct = list(dict.fromkeys(limit["resource"] for limit in limits))
    if len(distinct) > 1:
        rows = [(limit["pool"], limit["resource"], "") for limit in limits]
        return Tile("Limited by", "", _advice(summary), rows=rows, long=True)
    fits = [limit["times_load"] for limit in limits if limit["times_load"] is not None]
    room = room_words(min(fits)) if fits else ""
    return Tile("Limited by", distinct[0], room or _advice(summary), long=True)


def _advice(summary: dict[str, Any]) -> str:
    """Return the first change that was found to help: `fp8 weights: +5.7 % throughput`."""
    found = summary.get("advice") or []
    if not found:
        return ""
    return f"{found[0]['change']}: {signed(100 * found[0]['effect'], 1)} % {found[0]['measure']}"
