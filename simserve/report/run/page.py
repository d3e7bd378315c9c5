"""The sections about one run: numbers for the templates, and its figures."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from simserve.metrics.comparison import published_rows
from simserve.metrics.measures import both_words
from simserve.metrics.rates import advice_words
from simserve.metrics.replications import BINS as BAND_BINS
from simserve.metrics.replications import whole_edges
from simserve.metrics.store import StoredRun
from simserve.metrics.time_series import BINS, course, places
from simserve.report.page import Figure
from simserve.report.run.distributions import Curve, distribution, ecdf, gap_ecdf_ms, over_seeds
from simserve.report.run.headline import LIMIT_WORDS, hardware, headline, limits_in_words, published_words
from simserve.report.run.over_time import gamma_chart, over_time
from simserve.report.run.time_breakdown import (
    PARTS,
    STAGE_COLOURS,
    parts,
    source_rows,
    stage_chart,
    where_time_went,
)
from simserve.report.stored import Band, bands_of, completed, floats
from simserve.report.tiles.runs import run_tiles
from simserve.report.warnings import warnings
from simserve.report.words import anchor, complete, load_in_words, term_filter
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


def run_context(run: StoredRun, at: str = "", bins: int = 0) -> dict[str, Any]:
    """Return what the templates of a run read; `at` comes before the names of its sections and figures.

    `bins` are those of its time axis; 0: as many as its own page has.
    """
    summary, manifest = run.summary, complete(run.manifest)
    judged = summary.get("slo_verdict")
    return {
        "at": at,
        "summary": summary,
        "manifest": manifest,
        "title": manifest["scenario_name"] or run.folder.name,
        "headline": headline(summary, manifest, judged["outcome"] if judged else ""),
        "hardware": hardware(summary, manifest),
        "load": load_in_words(summary, manifest),
        "limits_in_words": limits_in_words,
        "limit_words": LIMIT_WORDS,
        "both_words": both_words,
        "advice_words": advice_words,
        "latencies": LATENCIES,
        "scenario_yaml": run.scenario_yaml,
        "bins": bins or bins_of(run),
        "banded": run.bands is not None,
        "parts": _parts_of(run),
        "stages": STAGE_COLOURS,
        "sources": source_rows(summary),
        "nothing_shared": _nothing_shared(summary, manifest),
        "definitions": summary["definitions"],
        "term": term_filter(summary["definitions"]),
        "anchor": anchor,
        "operations": sorted(summary.get("operations", {}).items(), key=lambda pair: -pair[1]),
        "verdict": judged,
        "tiles": run_tiles(run, manifest, course_of(run)),
        "warnings": warnings(summary),
        "published": published_words(published_rows({"base": run})),
        "provenance": sorted(summary["provenance"], key=_trust),
    }


def _nothing_shared(summary: dict[str, Any], manifest: dict[str, Any]) -> bool:
    """Return True if the trace could not say which prompts begin alike: a cache finds nothing then."""
    unknown = (manifest.get("trace") or {}).get("prefixes_known") is False
    return unknown and not summary["counts"]["cached_tokens"]


def run_charts(run: StoredRun, at: str = "", bins: int = 0) -> dict[str, Figure]:
    """Return the figures of a run by name, without those that would be empty."""
    summary, whole = run.summary, run.summary["whole"]
    if whole["start_s"] is None:
        return {}
    figures = {"over-time": over_time(course_of(run, bins), _steady(summary))}
    if summary["counts"]["completed"]:
        done = completed(run)
        figures |= _distributions(run, done) | {
            "ttft-parts": where_time_went(parts(done, "ttft_ms")),
            "e2e-parts": where_time_went(parts(done, "e2e_ms")),
        }
        if summary.get("split"):
            figures["ttft-stages"] = stage_chart(done)
    if summary.get("groups"):
        figures["gamma"] = gamma_chart(summary["groups"])
    return {at + name: figure for name, figure in figures.items() if figure["data"]}


def _distributions(run: StoredRun, done: pa.Table) -> dict[str, Figure]:
    whole, bands = run.summary["whole"], bands_of(run)
    limits = whole["slo"]["limits"] if whole["slo"] else {}
    curves = {
        "ttft": [Curve("TTFT", "$accent", "ttft_ms", *ecdf(floats(done, "ttft_ms")))],
        "tpot": [
            Curve("TPOT (per request)", "$accent", "tpot_ms", *ecdf(floats(done, "tpot_ms"))),
            Curve("ITL (per gap)", "$decode", "itl_ms", *gap_ecdf_ms(run.gaps, "whole")),
        ],
        "e2e": [Curve("E2E", "$accent", "e2e_ms", *ecdf(floats(done, "e2e_ms")))],
    }
    means = _over_seeds(run.summary)
    return {
        name: distribution([over_seeds(line, bands) for line in lines], means, limits)
        for name, lines in curves.items()
    }


def _over_seeds(summary: dict[str, Any]) -> dict[str, dict[str, float | None]]:
    """Return the statistics of the whole run's latencies: means over the seeds where there are several."""
    found = (summary.get("replications") or {"measures": {}})["measures"]
    return {
        key: {
            name: found.get(f"whole.{key}.{name}", {"mean": value})["mean"]
            for name, value in summary["whole"][key].items()
        }
        for _, key in LATENCIES
    }


def course_of(run: StoredRun, bins: int = 0) -> dict[str, Band]:
    """Return the series of a run over time; means over the seeds, with bands, where there are several.

    `bins` are those of a single run; 0: as many as its own page has.
    """
    edges = whole_edges(run.summary, bins or bins_of(run))
    if edges is None:
        return {}
    series = course(run.requests, run.timeline, places(run.summary["replicas"]), edges, int(edges[-1]))
    times_s = (edges[:-1] + edges[1:]) / 2 / NS_PER_S
    bands = bands_of(run)
    return {name: bands.get(name, Band(times_s, values)) for name, values in series.items()}


def bins_of(run: StoredRun) -> int:
    """Return the bins of a run's time axis."""
    return BINS if run.bands is None else BAND_BINS


def _parts_of(run: StoredRun) -> list[tuple[str, str]]:
    """Return label and colour of the parts into which the time of some request falls."""
    found = parts(completed(run), "e2e_ms")
    return [(label, colour[1:]) for label, name, colour in PARTS if any(getattr(one, name) for one in found)]


def _steady(summary: dict[str, Any]) -> tuple[float, float] | None:
    steady = summary["steady"]
    return (steady["start_s"], steady["end_s"]) if steady["duration_s"] else None


def _trust(provenance: str) -> tuple[int, str]:
    """Order of provenances: best first, unknown ones last."""
    return (_PROVENANCE.index(provenance) if provenance in _PROVENANCE else len(_PROVENANCE), provenance)
