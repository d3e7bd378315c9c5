"""Studies as short tables for the terminal."""

from __future__ import annotations

import os
import textwrap
from typing import Any

from rich.console import Console

from simserve.cli.fitted import FittedTable
from simserve.metrics.names import short_names
from simserve.report.deployment_words import deployment_words, options_words, types_words
from simserve.report.format import money, number, percent
from simserve.report.study_words import size_headline

MOST_ROWS = 30
MOST_SIZES = 3
"""Deployments of each kind: the answer stands above them, and should still be on the screen."""
PLAIN_WIDTH = 140
HEADING_WIDTH = 10


def print_sweep(study: dict[str, Any]) -> None:
    """Print the points of a sweep with the numbers that people look for first."""
    table = FittedTable(title=study["name"], box=None, padding=(0, 1, 0, 0))
    for name in short_names(study["paths"]).values():
        table.add_column(_heading(name), overflow="fold")
    for name in ("TTFT\np99\nms", "TPOT\np50\nms", "output\ntokens\n/s", "cost/M\ntokens", "SLO"):
        table.add_column(name, justify="right", no_wrap=True)
    done = [point for point in study["points"] if point["status"] == "done"]
    for point in done[:MOST_ROWS]:
        means = point["means"]
        table.add_row(
            *(str(point["settings"].get(path, "")) for path in study["paths"]),
            number(means["ttft_ms.p99"]),
            number(means["tpot_ms.p50"]),
            number(means["output_tokens_per_s"]),
            money(means["cost_per_million_output_tokens"], study["currency"]),
            slo_words(point),
        )
    console = _console()
    console.print(table)
    if len(done) > MOST_ROWS:
        console.print(f"... and {len(done) - MOST_ROWS:,} more points, all in the report")
    for status in ("dropped", "impossible"):
        points = [point for point in study["points"] if point["status"] == status]
        reasons = list(dict.fromkeys(point["reason"] for point in points))
        for reason in reasons[:5]:
            n = sum(point["reason"] == reason for point in points)
            console.print(f"{status}: {n:,} x {reason}", soft_wrap=True)


def _heading(name: str) -> str:
    """Return a name in short lines, broken after its underscores."""
    return "\n".join(textwrap.wrap(name.replace("_", "_ "), HEADING_WIDTH)).replace("_ ", "_")


def _console() -> Console:
    """Return the terminal; where there is none, lines wide enough for a table."""
    console = Console(highlight=False)
    asked = console.is_terminal or "COLUMNS" in os.environ
    return console if asked else Console(highlight=False, width=PLAIN_WIDTH)


def slo_words(point: dict[str, Any]) -> str:
    """Return the verdict with the estimate of the first target."""
    targets = point["targets"]
    if not targets or targets[0]["estimate"] is None:
        return "–"
    return f"{point['slo']} {percent(targets[0]['estimate'])}"


def print_size(study: dict[str, Any]) -> None:
    """Print the answer, what meets the SLO, and the best that misses."""
    console = _console()
    console.print(size_headline(study), style="bold", soft_wrap=True)
    for title, entries in (("meets the SLO", study["feasible"]), ("misses", study["missed"])):
        for one in entries[:MOST_SIZES]:
            why = one["shortfall"] or f"limited by {one['limited_by']}; breaks first: {one['breaks_first']}"
            price = money(one["price_per_hour"], study["currency"])
            chosen = options_words(one["settings"])
            name = deployment_words(one["pools"]) + types_words(one["settings"])
            console.print(
                f"{title}: {price}/h, {', '.join(filter(None, (name, chosen)))}: {why}", soft_wrap=True
            )
        _more(console, title, len(entries))
    for one in study["impossible"][:MOST_SIZES]:
        console.print(f"infeasible: {one['words']} because {one['because']}", soft_wrap=True)
    _more(console, "infeasible", len(study["impossible"]))
    work = study["work"]
    console.print(
        f"{work['simulated']:,} of {work['deployments']:,} deployments simulated "
        f"({work['stopped_early']:,} stopped early), {work['simulated_requests']:,} requests",
        soft_wrap=True,
    )


def _more(console: Console, title: str, entries: int) -> None:
    """Say how many lines were spared."""
    if entries > MOST_SIZES:
        console.print(f"{title}: {entries - MOST_SIZES:,} more, all in the report")
