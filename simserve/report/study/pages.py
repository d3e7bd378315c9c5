"""The page of a stored study again: what `study.json` holds is all that a page needs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from simserve.errors import ScenarioError
from simserve.metrics.measures import short_names
from simserve.report.page import Figure, render
from simserve.report.run.headline import deployment_words, options_words, types_words
from simserve.report.study.capacity import saturation_chart, write_capacity_page
from simserve.report.study.charts import (
    SHARES,
    aim_chart,
    frontier_charts,
    heat_maps,
    hypervolume_chart,
    setting_charts,
)
from simserve.report.study.words import capacity_headline, size_headline, sweep_headline
from simserve.report.tiles.study import answer_of, basis_of, size_tiles, study_notices, sweep_tiles

# The cheapest deployment as one offline page: the answer, what else would do, what misses, and why.

LATENCIES = (
    ("TTFT p50", "ttft_ms.p50"),
    ("TTFT p99", "ttft_ms.p99"),
    ("TPOT p50", "tpot_ms.p50"),
    ("TPOT p99", "tpot_ms.p99"),
)


def write_size_page(study: dict[str, Any], path: Path) -> None:
    """Write the page to `path`; the same study gives the same bytes."""
    entries = [*study["feasible"], *study["missed"]]
    charts = {"price": price_chart(entries, study.get("currency", "$"))} if len(entries) > 1 else {}
    answer = entries[0] if entries else None
    page = render(
        "size.html.j2",
        charts,
        title=study["name"],
        headline=size_headline(study),
        tiles=size_tiles(study),
        warnings=study_notices(study, answer, [one for one in entries if not one["stopped"]]),
        basis=basis_of(answer["means"]) if answer else {},
        latencies=LATENCIES,
        named=lambda one: deployment_words(one["pools"]) + types_words(one["settings"]),
        options=lambda one: options_words(one["settings"]),
        currency=study.get("currency", "$"),
        study=study,
    )
    path.write_text(page, encoding="utf-8")


def price_chart(entries: list[dict[str, Any]], currency: str) -> Figure:
    """Draw the share of good requests over the price, one dot per deployment that was simulated."""
    data = []
    for name, colour, kept in (
        ("meets the SLO", "$decode", [e for e in entries if not e["shortfall"]]),
        ("misses", "$limit", [e for e in entries if e["shortfall"] and not e["stopped"]]),
        ("stopped early", "$queue", [e for e in entries if e["stopped"]]),
    ):
        drawn = [(e, min(t["estimate"] or 0 for t in e["targets"])) for e in kept]
        if drawn:
            data.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "name": name,
                    "x": [float(f"{e['price_per_hour']:.5g}") for e, _ in drawn],
                    "y": [float(f"{100 * share:.5g}") for _, share in drawn],
                    "text": [deployment_words(e["pools"]) + types_words(e["settings"]) for e, _ in drawn],
                    "marker": {"color": colour, "size": 10},
                    "hovertemplate": "%{text}<br>%{x:,.4~r}/h, %{y:.4~g} %<extra>" + name + "</extra>",
                }
            )
    layout = {
        "height": 20,
        "xaxis": {"title": {"text": f"price, {currency}/h"}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": "% of requests within limits"}},
        "margin": {"t": 30, "l": 64, "r": 16, "b": 46},
        "showlegend": True,
        "legend": {"orientation": "h", "x": 0, "y": 1.14},
    }
    return {"data": data, "layout": layout}


# A sweep as one offline page. Knows study.json as plain values, nothing of how it came about.

TABLE_COLUMNS = (
    ("gpus", "GPUs"),
    ("ttft_ms.p50", "TTFT p50, ms"),
    ("ttft_ms.p99", "TTFT p99, ms"),
    ("tpot_ms.p50", "TPOT p50, ms"),
    ("itl_ms.p99", "ITL p99, ms"),
    ("e2e_ms.p99", "E2E p99, ms"),
    ("output_tokens_per_s", "output tokens/s"),
    ("goodput_per_gpu", "goodput/s per GPU"),
    ("cost_per_million_output_tokens", "cost per M output tokens"),
    ("busy", "busy"),
    ("kv_use_mean", "KV use"),
    ("hit_rate", "prefix hit rate"),
    ("estimated_share", "estimated"),
)


def write_sweep_page(study: dict[str, Any], path: Path) -> None:
    """Write the page to `path`; the same study gives the same bytes."""
    done = [point for point in study["points"] if point["status"] == "done"]
    left = [point for point in study["points"] if point["status"] != "done"]
    columns = [(key, label) for key, label in TABLE_COLUMNS if any(p["means"][key] is not None for p in done)]
    charts = setting_charts(study, done) | frontier_charts(study, done) | heat_maps(study, done)
    if study["kind"] == "search":
        charts |= aim_chart(study, done) | hypervolume_chart(study)
    answer = answer_of(study, done)
    page = render(
        "sweep.html.j2",
        charts,
        title=study["name"],
        headline=sweep_headline(study, done),
        tiles=sweep_tiles(study, done),
        warnings=study_notices(study, answer, done),
        basis=basis_of(answer["means"]) if answer else {},
        currency=study.get("currency", "$"),
        study=study,
        done=sorted(done, key=_rank),
        left=left,
        columns=columns,
        shares=SHARES,
        names=short_names(study["paths"]),
        by_setting=[name for name in charts if name.startswith("by-")],
        maps=[name for name in charts if name.startswith("heat-")],
    )
    path.write_text(page, encoding="utf-8")


def _rank(point: dict[str, Any]) -> tuple[bool, float]:
    """Points that meet the SLO, or have none, come first; then the least cost, or the most output tokens."""
    cost = point["means"]["cost_per_million_output_tokens"]
    return point["slo"] not in ("met", "none"), cost if cost is not None else -(
        point["means"]["output_tokens_per_s"] or 0
    )


STUDY = "study.json"
WRITERS: dict[str, Callable[[dict[str, Any], Path], None]] = {
    "sweep": write_sweep_page,
    "search": write_sweep_page,
    "capacity": write_capacity_page,
    "size": write_size_page,
}
"""By the study's kind."""


def study_answer(study: dict[str, Any]) -> str:
    """Return the sentence that the page of a study begins with."""
    if study["kind"] == "capacity":
        return capacity_headline(study)
    if study["kind"] == "size":
        return size_headline(study)
    return sweep_headline(study, [point for point in study["points"] if point["status"] == "done"])


def study_chart(study: dict[str, Any]) -> Figure | None:
    """Return the first chart of a study's page, if it has one."""
    if study["kind"] == "capacity":
        return saturation_chart(study)
    if study["kind"] == "size":
        entries = [*study["feasible"], *study["missed"]]
        return price_chart(entries, study.get("currency", "$")) if len(entries) > 1 else None
    done = [point for point in study["points"] if point["status"] == "done"]
    return next(iter((setting_charts(study, done) | frontier_charts(study, done)).values()), None)


def write_study_page(folder: Path) -> Path:
    """Write report.html of a study from its study.json; raises `ScenarioError` if that is not one of ours."""
    path = Path(folder) / STUDY
    try:
        study = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ScenarioError(f"{path}: not valid JSON: {error}") from error
    kind = study.get("kind") if isinstance(study, dict) else None
    if kind not in WRITERS:
        raise ScenarioError(f"{path}: kind: found {kind!r}, allowed: {', '.join(WRITERS)}")
    page = Path(folder) / "report.html"
    WRITERS[kind](study, page)
    return page
