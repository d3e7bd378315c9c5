"""The table that `simserve run` prints for a scenario with variants: one line per run, in 80 columns."""

from __future__ import annotations

from rich.table import Table

from simserve.metrics import Summary


def comparison_table(title: str, summaries: dict[str, Summary]) -> Table:
    """Return the medians and tails of each run over its whole length."""
    table = Table(title=title, title_justify="left", title_style="bold", width=80)
    table.add_column("ms, whole run", ratio=1, overflow="fold")
    for name in ("TTFT p50", "TTFT p99", "TPOT p50", "ITL p99", "tokens/s", "done"):
        table.add_column(name, justify="right")
    for name, summary in summaries.items():
        table.add_row(name, *_cells(summary))
    return table


def _cells(summary: Summary) -> list[str]:
    whole, counts = summary.whole, summary.counts
    values = (whole.ttft_ms.p50, whole.ttft_ms.p99, whole.tpot_ms.p50, whole.itl_ms.p99)
    done = f"{counts.completed / counts.requests:.0%}" if counts.requests else "-"
    if summary.stability.verdict == "unstable":
        done += " !"
    tokens = whole.output_tokens_per_s
    return [*map(_number, values), "-" if tokens is None else f"{tokens:,.0f}", done]


def _number(value: float | None) -> str:
    """Write ms with one decimal, or none from a second on, so that seven columns fit."""
    return "-" if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:,.1f}"
