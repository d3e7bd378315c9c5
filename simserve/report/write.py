"""From a result folder to report.html."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from simserve.metrics.store import StoredRun, read_results
from simserve.report import charts, series
from simserve.report.facts import complete
from simserve.report.headline import LIMIT_WORDS, hardware, headline, limits_in_words
from simserve.report.page import Figure, render
from simserve.units import NS_PER_S

LATENCIES = (
    ("TTFT", "ttft_ms"),
    ("TPOT", "tpot_ms"),
    ("ITL", "itl_ms"),
    ("E2E", "e2e_ms"),
    ("queueing", "queueing_ms"),
    ("re-queueing", "requeued_ms"),
    ("E2E per token", "normalised_ms"),
)


_PROVENANCE = ("measured", "interpolated", "extrapolated", "analytic")


def write_report(folder: Path) -> Path:
    """Write report.html into the result folder, from what lies there alone, and return its path.

    The same folder gives the same bytes. Raises `ScenarioError` if it is not a result folder.
    """
    folder = Path(folder)
    run = read_results(folder)
    page = render("report.html.j2", _charts(run), **_context(run))
    target = folder / "report.html"
    staging = folder / "report.html.partial"
    staging.write_bytes(page.encode())
    os.replace(staging, target)
    return target


def _context(run: StoredRun) -> dict[str, Any]:
    summary, manifest = run.summary, complete(run.manifest)
    return {
        "summary": summary,
        "manifest": manifest,
        "title": manifest["scenario_name"] or run.folder.name,
        "headline": headline(summary, manifest),
        "hardware": hardware(summary, manifest),
        "limits_in_words": limits_in_words,
        "limit_words": LIMIT_WORDS,
        "latencies": LATENCIES,
        "scenario_yaml": run.scenario_yaml,
        "bins": series.BINS,
        "parts": [(label, colour[1:]) for label, _, colour in charts.PARTS],
        "provenance": sorted(summary["provenance"], key=_trust),
    }


def _charts(run: StoredRun) -> dict[str, Figure]:
    summary, whole = run.summary, run.summary["whole"]
    if whole["start_s"] is None:
        return {}
    figures = {"over-time": charts.over_time(_course(run), _steady(summary))}
    if summary["counts"]["completed"]:
        figures |= _distributions(run) | {
            "ttft-parts": charts.where_time_went(series.parts(run.requests, "ttft_ms")),
            "e2e-parts": charts.where_time_went(series.parts(run.requests, "e2e_ms")),
        }
    return {name: figure for name, figure in figures.items() if figure["data"]}


def _distributions(run: StoredRun) -> dict[str, Figure]:
    whole = run.summary["whole"]
    limits = whole["slo"]["limits"] if whole["slo"] else {}
    done = _completed(run.requests)
    curves = {
        "ttft": [("TTFT", "$accent", "ttft_ms", series.ecdf(_column(done, "ttft_ms")))],
        "tpot": [
            ("TPOT (per request)", "$accent", "tpot_ms", series.ecdf(_column(done, "tpot_ms"))),
            ("ITL (per gap)", "$decode", "itl_ms", series.gap_ecdf_ms(run.gaps, "whole")),
        ],
        "e2e": [("E2E", "$accent", "e2e_ms", series.ecdf(_column(done, "e2e_ms")))],
    }
    return {name: charts.distribution(lines, whole, limits) for name, lines in curves.items()}


def _course(run: StoredRun) -> series.Course:
    whole = run.summary["whole"]
    blocks = {replica["name"]: replica["kv_blocks"] for replica in run.summary["replicas"]}
    start_ns, end_ns = round(whole["start_s"] * NS_PER_S), round(whole["end_s"] * NS_PER_S)
    return series.course(run.requests, run.timeline, blocks, start_ns, end_ns)


def _steady(summary: dict[str, Any]) -> tuple[float, float] | None:
    steady = summary["steady"]
    return (steady["start_s"], steady["end_s"]) if steady["duration_s"] else None


def _completed(requests: pa.Table) -> pa.Table:
    return requests.filter(series.equals(requests["status"], "completed"))


def _column(table: pa.Table, name: str) -> np.ndarray:
    return table[name].to_numpy(zero_copy_only=False).astype(np.float64)


def _trust(provenance: str) -> tuple[int, str]:
    """Order of provenances: best first, unknown ones last."""
    return (_PROVENANCE.index(provenance) if provenance in _PROVENANCE else len(_PROVENANCE), provenance)
