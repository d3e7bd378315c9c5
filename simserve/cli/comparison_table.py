"""The table that `simserve run` prints for a scenario with variants: one line per run."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Group

from simserve.cli.fitted import FittedTable
from simserve.cli.replications_text import half_width, spread_of
from simserve.metrics import Summary
from simserve.metrics.replications import Estimate
from simserve.metrics.slo_verdict import MISSED, SloVerdict
from simserve.metrics.stability import UNSTABLE

OVERLOADED = "! overloaded: the queue never stopped growing, so latencies depend on how long the run is"


def comparison_table(title: str, summaries: dict[str, Summary]) -> Group:
    """Return the medians and tails of each run over its whole length, and who meets the SLO."""
    table = FittedTable(title=title, title_style="bold")
    table.add_column("ms, whole run")
    targets = {one.slo_verdict.target for one in summaries.values() if one.slo_verdict is not None}
    judged, several = bool(targets), len(targets) > 1
    target = "" if several else "\n".join(f"{share * 100:g}%" for share in targets)
    for heading in (*_HEADINGS, *((f"SLO\n{target}",) if judged else ()), "done"):
        table.add_column(heading, justify="right")
    for name, summary in summaries.items():
        spread = spread_of(summary.replications)
        within = [_judged(summary.slo_verdict, several)] if judged else []
        table.add_row(name, *_cells(summary, spread), *within, _done(summary))
        if spread:
            table.add_row("", *_halves(spread, judged))
    overloaded = any(map(_overloaded, summaries.values()))
    return Group(table, *([OVERLOADED] if overloaded else []))


_KEYS = (
    "whole.ttft_ms.p50",
    "whole.ttft_ms.p99",
    "whole.tpot_ms.p50",
    "whole.itl_ms.p99",
    "rates.output_tokens_per_s",
)
_HEADINGS = ("TTFT\np50", "TTFT\np99", "TPOT\np50", "ITL\np99", "output\ntokens/s")


def _judged(found: SloVerdict | None, several: bool) -> str:
    """Return the share that decides, and the verdict; with its target where there are several."""
    if found is None:
        return "-"
    if found.kept is None or (found.outcome == MISSED and found.kept >= found.target):  # an overload
        return found.outcome
    target = f" of {found.target * 100:g}%" if several else ""
    return f"{found.kept:.1%}{target}\n{found.outcome}"


def _done(summary: Summary) -> str:
    counts = summary.counts
    done = f"{counts.completed / counts.requests:.0%}" if counts.requests else "-"
    return done + " !" if _overloaded(summary) else done


def _overloaded(summary: Summary) -> bool:
    return summary.stability.verdict == UNSTABLE


def _halves(spread: Mapping[str, Estimate], judged: bool) -> list[str]:
    """Return the half-widths that stand below a row."""
    cells = [_half(spread.get(key)) for key in _KEYS]
    return [*cells, *([""] if judged else []), ""]


def _half(one: Estimate | None) -> str:
    """Return the half-width of an interval, as short as the number above it."""
    if one is None or one.high is None:
        return ""
    return half_width(one, 1 if one.mean < 1000 else 0)


def _cells(summary: Summary, spread: Mapping[str, Estimate]) -> list[str]:
    """Return the figures of a run, or their means over several seeds."""
    whole = summary.whole
    own = (
        whole.ttft_ms.p50,
        whole.ttft_ms.p99,
        whole.tpot_ms.p50,
        whole.itl_ms.p99,
        summary.rates.output_tokens_per_s,
    )
    pairs = zip(_KEYS, own, strict=True)
    *values, tokens = (spread[key].mean if key in spread else value for key, value in pairs)
    return [*map(_number, values), "-" if tokens is None else f"{tokens:,.0f}"]


def _number(value: float | None) -> str:
    """Write ms with one decimal, or none from a second on, so that eight columns fit."""
    return "-" if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:,.1f}"
