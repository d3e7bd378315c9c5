"""The tiles of one run: verdict, goodput, latencies with their spread, queue, cost, limit, and the basis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from simserve.metrics.store import StoredRun
from simserve.report.bands import Band
from simserve.report.difference_words import signed
from simserve.report.facts import figure_of
from simserve.report.format import latency, money, number, percent
from simserve.report.load_words import offered_per_s
from simserve.report.stored import completed, floats
from simserve.report.tiles.spark import course_line, distribution_bars, share_bar
from simserve.report.tiles.tile import JUDGED, Tile, basis_tile


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
    room = f"about {number(min(fits))} times this load fits" if fits else ""
    return Tile("Limited by", distinct[0], room or _advice(summary), long=True)


def _advice(summary: dict[str, Any]) -> str:
    """Return the first change that was found to help: `fp8 weights: +5.7 % throughput`."""
    found = summary.get("advice") or []
    if not found:
        return ""
    return f"{found[0]['change']}: {signed(100 * found[0]['effect'], 1)} % {found[0]['measure']}"
