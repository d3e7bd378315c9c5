"""What `simserve trace` prints: tables for people, JSON for machines."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from rich.console import Console

from simserve.cli.terminal import FittedTable

if TYPE_CHECKING:
    from simserve.core import Trace
    from simserve.workload import CacheCurve
    from simserve.workload.catalogue import PublicTrace
    from simserve.workload.stats import LengthStats, TraceStats


def print_json(trace: Trace, figures: TraceStats, curve: CacheCurve | None = None) -> None:
    """Print the origin and the figures; the hit rates against capacity under `cache`, if asked for."""
    origin = trace.origin
    head = {
        "name": origin.name,
        "format": origin.format,
        "sha256": origin.sha256,
        "assumptions": origin.assumptions,
        "changes": origin.changes,
    }
    cache = {} if curve is None else {"cache": curve.to_dict()}
    print(json.dumps(head | figures.to_dict() | cache, indent=2))


def print_stats(trace: Trace, figures: TraceStats) -> None:
    """Print the figures as tables, then what the reader assumed and changed."""
    console = Console(highlight=False)
    console.print(_lengths(trace.origin.name, figures))
    console.print(_arrivals(figures))
    for line in _prefix(figures):
        console.print(line)
    for word, notes in (("assumed", trace.origin.assumptions), ("changed", trace.origin.changes)):
        for note in notes:
            console.print(f"{word}: {note}", markup=False)


def print_cache(curve: CacheCurve) -> None:
    """Print the hit rates of prefix caches of several capacities."""
    block, console = curve.cache_block_tokens, Console(highlight=False)
    table = FittedTable(title="Prefix hits of an LRU cache", title_style="bold")
    for name in (f"blocks of {block}", "tokens", "token hit %", "block hit %"):
        table.add_column(name, justify="right")
    for point in curve.points:
        blocks, tokens = point.capacity_blocks, point.capacity_tokens
        size = ("no limit", "") if blocks is None or tokens is None else (f"{blocks:,}", f"{tokens:,}")
        table.add_row(*size, f"{point.token_hit_rate:.2%}"[:-1], f"{point.block_hit_rate:.2%}"[:-1])
    console.print(table)
    enough = curve.enough_blocks
    console.print(
        f"{enough:,} blocks ({enough * block:,} tokens) already reach the hit rate of an unlimited cache."
    )
    console.print("Requests one after another, prompts only; a run adds overlap and outputs.")


def print_catalogue(catalogue: dict[str, PublicTrace]) -> None:
    """Print the public traces with their licences."""
    table = FittedTable(title="Public traces")
    for name in ("name", "what it is", "licence"):
        table.add_column(name, overflow="fold", no_wrap=name == "name")
    for name, trace in catalogue.items():
        table.add_row(name, trace.about, trace.licence)
    Console(highlight=False).print(table)


def _lengths(name: str, figures: TraceStats) -> FittedTable:
    sessions = f", {figures.sessions:,} sessions" if figures.sessions is not None else ""
    table = FittedTable(
        title=f"{name}: {figures.requests:,} requests{sessions}",
        title_style="bold",
    )
    table.add_column("tokens")
    for column in ("mean", "p5", "p50", "p90", "p95", "p99", "max", "sum"):
        table.add_column(column, justify="right")
    table.add_row("prompt", *_length_cells(figures.prompt_tokens))
    table.add_row("output", *_length_cells(figures.output_tokens))
    return table


def _length_cells(lengths: LengthStats) -> list[str]:
    values = (lengths.mean, lengths.p5, lengths.p50, lengths.p90, lengths.p95, lengths.p99)
    return [*(f"{value:,.0f}" for value in values), f"{lengths.max:,}", _short(lengths.sum)]


def _arrivals(figures: TraceStats) -> FittedTable:
    arrivals = figures.arrivals
    table = FittedTable()
    for name in ("arrivals", "duration s", "per s", "gap CV", "longest gap s", "equal stamps"):
        table.add_column(name, justify="right")
    table.add_row(
        f"{arrivals.arrivals:,}",
        f"{arrivals.duration_s:,.1f}",
        _maybe(arrivals.rate_per_s),
        _maybe(arrivals.gap_cv),
        f"{arrivals.longest_gap_s:,.2f}",
        f"{arrivals.equal_stamps:,}",
    )
    table.caption_justify = "left"
    table.caption = "\n".join(
        f"in windows of {window.window_s} s: dispersion {window.idc:,.2f}, peak {window.peak:,.2f} x mean, "
        f"{window.empty_share:.1%} empty"
        for window in arrivals.windows
    )
    return table


def _prefix(figures: TraceStats) -> list[str]:
    prefix = figures.prefix
    if prefix is None:
        return ["no prefix information"]
    return [
        f"prefix reuse, cache without limit: {prefix.token_hit_rate:.2%} of prompt tokens, "
        f"{prefix.block_hit_rate:.2%} of blocks",
        f"{prefix.distinct_blocks:,} distinct of {prefix.referenced_blocks:,} blocks of "
        f"{prefix.block_tokens} tokens; {prefix.requests_with_hit:,} requests with a hit, "
        f"{prefix.requests_fully_hit:,} fully hit",
    ]


def _maybe(value: float | None) -> str:
    return "-" if value is None else f"{value:,.3f}"


def _short(value: int) -> str:
    for unit, size in (("G", 10**9), ("M", 10**6)):
        if value >= size:
            return f"{value / size:,.2f}{unit}"
    return f"{value:,}"
