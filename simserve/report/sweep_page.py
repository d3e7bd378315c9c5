"""A sweep as one offline page. Knows study.json as plain values, nothing of how it came about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simserve.metrics.names import short_names
from simserve.report.page import render
from simserve.report.study_charts import (
    SHARES,
    aim_chart,
    frontier_charts,
    heat_maps,
    hypervolume_chart,
    setting_charts,
)
from simserve.report.study_words import sweep_headline
from simserve.report.tiles.study import answer_of, basis_of, study_notices, sweep_tiles

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
