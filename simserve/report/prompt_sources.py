"""Where prompt tokens came from: the prefix cache, a tier below it, or computed; as a chart and in words."""

from __future__ import annotations

from typing import Any

import numpy as np

from simserve.metrics.store import StoredRun
from simserve.report.page import Figure
from simserve.report.stored import short

SOURCES = {"hbm": "$decode", "cpu": "$queue", "ssd": "$requeue", "remote": "$other", "computed": "$prefill"}
"""Where prompt tokens come from, fastest first, and how each is drawn."""


def prompt_sources(runs: dict[str, StoredRun]) -> Figure:
    """Return one bar per run: prompt tokens of completed requests found in HBM or a tier, and computed."""
    names = list(runs)[::-1]
    found = [tokens_by_source(runs[name].summary) for name in names]
    whole = np.array([max(sum(tokens.values()), 1) for tokens in found], dtype=np.float64)
    if not any(tokens[source] for tokens in found for source in tokens if source != "computed"):
        return {"data": [], "layout": {}}
    shares = {source: np.array([tokens.get(source, 0) for tokens in found], np.float64) for source in SOURCES}
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": _words(source),
            "y": names,
            "x": short(100 * tokens / whole),
            "customdata": [f"{int(n):,}" for n in tokens],
            "hovertemplate": "%{customdata} tokens, %{x:.3~g} %<extra>%{fullData.name}</extra>",
            "marker": {"color": SOURCES[source]},
        }
        for source, tokens in shares.items()
        if tokens.any() or source in ("hbm", "computed")
    ]
    return {
        "data": traces,
        "layout": {
            "height": 6 + 2.2 * len(names),
            "barmode": "stack",
            "bargap": 0.35,
            "xaxis": {"range": [0, 100], "ticksuffix": " %", "dtick": 25},
            "yaxis": {"automargin": True, "showgrid": False},
            "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "traceorder": "normal"},
            "margin": {"t": 30, "l": 10, "r": 34, "b": 30},
        },
    }


def tokens_by_source(summary: dict[str, Any]) -> dict[str, int]:
    """Return prompt tokens by source; a tier has no more than was found (preempted requests load again)."""
    counts = summary["counts"]
    cached = left = counts.get("cached_tokens", 0)
    tokens: dict[str, int] = {}
    for tier in summary.get("kv_tiers") or []:
        share = min(left, tier["hit_tokens"])
        tokens[tier["kind"]] = tokens.get(tier["kind"], 0) + share
        left -= share
    return tokens | {"hbm": left, "computed": counts["prompt_tokens"] - cached}


def source_rows(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """Return words, colour and tokens of each source of one run's prompt tokens, fastest first."""
    tokens = tokens_by_source(summary)
    return [
        {"words": _words(source), "colour": colour, "tokens": tokens[source]}
        for source, colour in SOURCES.items()
        if tokens.get(source) or source == "computed"
    ]


def _words(source: str) -> str:
    return {"hbm": "found in the prefix cache", "computed": "computed"}.get(source, f"loaded from {source}")
