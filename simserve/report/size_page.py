"""The cheapest deployment as one offline page: the answer, what else would do, what misses, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from simserve.report.deployment_words import deployment_words, options_words, types_words
from simserve.report.page import Figure, render
from simserve.report.study_words import size_headline
from simserve.report.tiles.study import basis_of, size_tiles, study_notices

LATENCIES = (
    ("TTFT p50", "ttft_ms.p50"),
    ("TTFT p99", "ttft_ms.p99"),
    ("TPOT p50", "tpot_ms.p50"),
    ("TPOT p99", "tpot_ms.p99"),
)


def write_size_page(study: dict[str, Any], path: Path) -> None:
    """Write the page to `path`; the same study gives the same bytes."""
    entries = [*study["feasible"], *study["missed"]]
    charts = {"price": _price(entries, study.get("currency", "$"))} if len(entries) > 1 else {}
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


def _price(entries: list[dict[str, Any]], currency: str) -> Figure:
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
