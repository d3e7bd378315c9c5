"""A tile per run of a comparison: its verdict, then the figures by which runs are chosen."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from markupsafe import Markup

from simserve.metrics.store import StoredRun
from simserve.report.facts import complete, figure_of
from simserve.report.format import latency, money, number, percent
from simserve.report.looks import looks
from simserve.report.tiles.spark import share_bar
from simserve.report.tiles.tile import JUDGED, Tile

CLEAR = 0.02
"""Relative lead from which on a figure is marked as the best."""


class _Figure(NamedTuple):
    words: str
    key: str
    pick: Any
    """min or max: which of two is better."""


_FIGURES = (
    _Figure("goodput/s", "rates.goodput_requests_per_s", max),
    _Figure("requests/s", "rates.requests_per_s", max),
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
    if told and told[0].words.startswith("goodput"):
        told = [figure for figure in told if figure.words != "requests/s"]
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
