"""The page of a scenario with variants: the sentence, the table, the pictures, then each run by itself."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from simserve.metrics.comparison import StoredComparison
from simserve.metrics.replications import BINS
from simserve.metrics.store import StoredRun
from simserve.report.compare.charts import frontier, hits_by_capacity, overlays, runs_over_time
from simserve.report.compare.differences import paired_charts, relative_differences
from simserve.report.compare.effects import changes_load
from simserve.report.compare.ratio import ratio_charts, ratio_points, ratio_sentences
from simserve.report.compare.settings import (
    changes_words,
    difference_words,
    in_unit_words,
    is_shown,
    kv_sentences,
    signed,
)
from simserve.report.compare.words import comparison_headline, split_headline
from simserve.report.page import Figure, render
from simserve.report.run.headline import measured_headline, published_words
from simserve.report.run.page import run_charts, run_context
from simserve.report.run.time_breakdown import prompt_sources
from simserve.report.styles import looks
from simserve.report.tiles.runs import compare_tiles
from simserve.report.warnings import merged, notices
from simserve.report.words import NBSP, anchor, complete, money, percent, term_filter

FRONTIER_FROM = 3
"""Runs from which on a chart of trade-offs says more than the table."""

MANY = 4
"""Runs above which each is drawn over time as coarsely as all of them together: pages stay small."""

SAME = 0.01
"""Relative differences below this are neither better nor worse."""

NOISE = 0.001
"""Relative differences below this are not written out."""

Row = dict[str, Any]


def comparison_page(found: StoredComparison, command: str = "") -> str:
    """Return the page of a comparison; `command` made it, if it is not that of one folder."""
    table = found.table
    names = list(found.runs)
    simulated = {name: run for name, run in found.runs.items() if not run.measured}
    base = next(iter((simulated or found.runs).values()))
    bins = BINS if len(found.runs) > MANY and base.bands is None else 0
    runs = {name: run_context(run, f"run{i}-", bins) for i, (name, run) in enumerate(simulated.items())}
    charts = comparison_charts(found)
    for i, run in enumerate(simulated.values()):
        charts |= run_charts(run, f"run{i}-", bins)
    judged = {name: run["verdict"]["outcome"] for name, run in runs.items() if run["verdict"]}
    currency = complete(base.manifest)["currency"]
    differing = [row for row in table["measures"] if len(set(row["values"].values())) > 1]
    return render(
        "compare.html.j2",
        charts,
        title=complete(base.manifest)["scenario_name"] or base.folder.name,
        headline=answer(found),
        bad=any(not verdict["completed"] for verdict in table["verdicts"].values()),
        command=command,
        table=table,
        looks=looks(names),
        tiles=compare_tiles(found.runs, [n for n in table["variants"] if changes_load(table, n)]),
        runs=list(runs.items()),
        measured={name: run.measured for name, run in found.runs.items() if run.measured},
        without_requests={n for n, run in found.runs.items() if run.measured and not run.requests.num_rows},
        rows=[comparison_cells(table, row, currency) for row in differing],
        equal=[_equal(table, row, currency) for row in table["measures"] if row not in differing],
        changes=changes_words(table["changes"]),
        differ=_differ(table),
        asked=_asked(base.summary),
        warnings=merged({name: notices(run.summary) for name, run in found.runs.items()}),
        kv=kv_sentences(table),
        published=published_words(table.get("published", [])),
        ratio=ratio_sentences(*ratio_points(simulated), _slo(base) is not None),
        balance=base.manifest.get("balance"),
        signed=signed,
        manifest=complete(base.manifest),
        scenario_yaml=base.scenario_yaml,
        definitions=base.summary["definitions"],
        term=term_filter(base.summary["definitions"]),
        anchor=anchor,
        judged=judged,
        frontier="ttft-itl" in charts,
    )


def answer(found: StoredComparison) -> Markup:
    """Return the sentence of a comparison: who meets the SLO, at what cost, and how latencies differ."""
    simulated = {name: run for name, run in found.runs.items() if not run.measured}
    if len(simulated) < len(found.runs):
        return measured_headline(found.table)
    base = next(iter(simulated.values()))
    verdicts = {name: run.summary.get("slo_verdict") for name, run in simulated.items()}
    judged = {name: one["outcome"] for name, one in verdicts.items() if one}
    currency = complete(base.manifest)["currency"]
    kept, closed = _kept(simulated), _closed(base)
    return split_headline(simulated) or comparison_headline(
        found.table, judged, currency, kept=kept, closed=closed
    )


def plain_answer(found: StoredComparison) -> str:
    """Return the sentence of a comparison for a terminal."""
    return answer(found).striptags().replace("\u00a0", " ")


def comparison_charts(found: StoredComparison) -> dict[str, Figure]:
    """Return the figures about all runs together, by name, without those that would be empty."""
    slo = found.runs[found.table["base"]].summary["whole"]["slo"]
    simulated = {name: run for name, run in found.runs.items() if not run.measured}
    figures = ratio_charts(*ratio_points(simulated), slo is not None)
    figures["differences"] = relative_differences(found.table)
    figures |= overlays(found.runs, slo["limits"] if slo else {})
    figures |= paired_charts(found.runs, found.table)
    figures["all-time"] = runs_over_time(simulated)
    figures["prompt-sources"] = prompt_sources({n: run for n, run in found.runs.items() if not run.measured})
    if len(found.runs) >= FRONTIER_FROM:
        figures["ttft-itl"] = frontier(found.table, "whole.ttft_ms.p50", "whole.itl_ms.p99")
        figures["hits-capacity"] = hits_by_capacity(found.table)
        figures["tail-tpot"] = frontier(found.table, "whole.ttft_ms.p99", "whole.tpot_ms.p50")
    return {name: figure for name, figure in figures.items() if figure["data"]}


MOST_DIFFER = 4
"""Settings named in the line below the headline."""


def _differ(table: dict[str, Any]) -> str:
    """Return which settings the runs differ in, each once: `max_num_batched_tokens and max_num_seqs`."""
    names = list(dict.fromkeys(change["name"] for found in table["changes"].values() for change in found))
    more = len(names) - MOST_DIFFER
    return ", ".join(names[:MOST_DIFFER]) + (f" and {more} more settings" if more > 0 else "")


def _asked(summary: dict[str, Any]) -> str:
    """Return what the scenario asks for; nothing without an SLO."""
    found = summary.get("slo_verdict")
    return "; ".join(check["asked"] for check in found["checks"]) if found else ""


def _kept(runs: dict[str, StoredRun]) -> dict[str, float | None]:
    """Return the share of requests within the SLO, of each run that has one."""
    verdicts = {name: run.summary.get("slo_verdict") for name, run in runs.items()}
    return {name: found["kept"] for name, found in verdicts.items() if found}


def _closed(run: StoredRun) -> bool:
    """Return True if answers set the pace of the requests."""
    return bool((run.manifest.get("workload") or {}).get("closed_loop"))


def _slo(run: StoredRun) -> dict[str, Any] | None:
    return run.summary["whole"]["slo"]


def comparison_cells(table: dict[str, Any], row: Row, currency: str = "$") -> Row:
    """Return a row of the table: what each run shows, how it differs, and whether that is better."""
    cells = []
    for name in (table["base"], *table["variants"]):
        value = row["values"][name]
        cell = {
            "name": name,
            "value": value,
            "text": _shown(row, value, currency),
            "interval": _interval(row, name, currency),
            "note": "",
            "judged": "",
        }
        if name != table["base"] and value is not None:
            cell["note"] = _note(row, name, currency)
            cell["judged"] = _judged(row, name)
        cells.append(cell)
    return {"key": row["key"], "label": row["label"], "cells": cells}


def _shown(row: Row, value: float | None, currency: str) -> str:
    """Return a value with its unit, or as a price."""
    return money(value, currency) if row["key"].startswith("cost") else in_unit_words(value, row["unit"])


def _interval(row: Row, name: str, currency: str) -> str:
    """Return the confidence interval of a mean over several seeds; nothing for a single run."""
    ends = row.get("intervals", {}).get(name)
    if not ends:
        return ""
    low, high = (_shown(row, end, currency) for end in ends)
    unit = high.partition(NBSP)[1:]  # said once
    return f"{low.removesuffix(''.join(unit))} to {high}"


def _note(row: Row, name: str, currency: str) -> str:
    """Return the difference, absolute and relative, and whether several seeds show one."""
    found = row["differences"][name]
    if found is None:
        return ""
    words = _difference(row, name, currency)
    return words if is_shown(found) else f"{words}, may be chance"


def _difference(row: Row, name: str, currency: str) -> str:
    found = row["differences"][name]
    if found["absolute"] == 0:
        return "same"
    relative = difference_words(row, name)
    if found["relative"] is not None and abs(found["relative"]) < NOISE:
        return f"within {percent(NOISE)}"
    if row["unit"] == "share":
        return relative
    size = _shown(row, abs(found["absolute"]), currency)
    absolute = ("−" if found["absolute"] < 0 else "+") + size
    return f"{absolute}, {relative}" if relative else absolute


def _judged(row: Row, name: str) -> str:
    """Return 'better', 'worse', or nothing."""
    found = row["differences"][name]
    if found is None or not row["better"] or not is_shown(found):
        return ""
    share = found["absolute"] if row["unit"] == "share" else found["relative"]
    if share is None:
        share = found["absolute"]
    if abs(share) < SAME:
        return ""
    return "better" if (share < 0) == (row["better"] == "lower") else "worse"


def _equal(table: dict[str, Any], row: Row, currency: str) -> tuple[str, str]:
    return row["label"], _shown(row, row["values"][table["base"]], currency)
