"""The table that `simserve run` prints for a scenario with variants: one line per run, in 80 columns."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

from simserve.cli.replications_text import half_width, spread_of
from simserve.metrics import Summary
from simserve.metrics.replications import Estimate


def comparison_table(title: str, summaries: dict[str, Summary]) -> Table:
    """Return the medians and tails of each run over its whole length."""
    table = Table(title=title, title_justify="left", title_style="bold", width=80)
    table.add_column("ms, whole run", ratio=1, overflow="fold")
    for name in ("TTFT p50", "TTFT p99", "TPOT p50", "ITL p99", "tokens/s", "done"):
        table.add_column(name, justify="right")
    for name, summary in summaries.items():
        spread = spread_of(summary.replications)
        table.add_row(name, *_cells(summary, spread))
        if spread:
            table.add_row("", *(_half(spread.get(key)) for key in _KEYS), "")
    return table


_KEYS = (
    "whole.ttft_ms.p50",
    "whole.ttft_ms.p99",
    "whole.tpot_ms.p50",
    "whole.itl_ms.p99",
    "whole.output_tokens_per_s",
)


def _half(one: Estimate | None) -> str:
    """Return the half-width of an interval, as short as the number above it."""
    if one is None or one.high is None:
        return ""
    return half_width(one, 1 if one.mean < 1000 else 0)


def _cells(summary: Summary, spread: Mapping[str, Estimate]) -> list[str]:
    """Return the figures of a run, or their means over several seeds."""
    whole, counts = summary.whole, summary.counts
    own = (
        whole.ttft_ms.p50,
        whole.ttft_ms.p99,
        whole.tpot_ms.p50,
        whole.itl_ms.p99,
        whole.output_tokens_per_s,
    )
    pairs = zip(_KEYS, own, strict=True)
    *values, tokens = (spread[key].mean if key in spread else value for key, value in pairs)
    done = f"{counts.completed / counts.requests:.0%}" if counts.requests else "-"
    if summary.stability.verdict == "unstable":
        done += " !"
    return [*map(_number, values), "-" if tokens is None else f"{tokens:,.0f}", done]


def _number(value: float | None) -> str:
    """Write ms with one decimal, or none from a second on, so that seven columns fit."""
    return "-" if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:,.1f}"
