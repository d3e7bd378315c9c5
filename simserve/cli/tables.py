"""The table that `simserve run` prints for a scenario with variants: one line per run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from rich.console import Group
from rich.text import Text

from simserve.cli.terminal import FittedTable, Prose
from simserve.metrics import Summary
from simserve.metrics.distribution import Distribution
from simserve.metrics.measures import both_words
from simserve.metrics.rates import advice_words
from simserve.metrics.replications import Estimate, Replications
from simserve.metrics.slo_verdict import MET, MISSED, SloVerdict
from simserve.metrics.stability import TOO_SHORT, UNSTABLE, too_short_words
from simserve.report.warnings import ALL_ESTIMATED
from simserve.report.words import money
from simserve.scenario import Scenario

# What a user must know about a finished run: the reasons for exit code 3.


def warnings_of(summary: Summary, fail_on_slo: bool) -> list[str]:
    """Return a line per reason; `fail_on_slo`: an SLO that is not met is one."""
    counts, lines = summary.counts, []
    if not counts.completed:
        reasons = "; ".join(f"{n:,} x {text}" for text, n in counts.reasons.items())
        lines.append(f"nothing completed: {counts.requests:,} requests, {reasons or 'no reason recorded'}")
    if counts.abandoned:
        lines.append(
            f"clients gave up on {counts.abandoned:,} of {counts.requests:,} requests; "
            f"{counts.wasted_tokens:,} output tokens were wasted"
        )
    if summary.stability.verdict == "unstable":
        lines.append(f"unstable, the load is not carried: {summary.stability.reason}")
    if summary.stability.verdict == TOO_SHORT:
        lines.append(too_short_words(summary.stability))
    block = summary.replications
    if block is not None and block.random and block.unstable and summary.stability.verdict != "unstable":
        lines.append(f"unstable in {block.unstable} of {block.n} runs with other seeds")
    found = summary.slo_verdict
    if fail_on_slo and found is not None and found.outcome != MET:
        lines.append(f"SLO {found.outcome}: {found.text}")
    return lines


# What the terminal says about runs with several seeds: means and half-widths, or why there are none.


def spread_of(block: Replications | None) -> Mapping[str, Estimate]:
    """Return the measures that have an interval, by key; none for a single run."""
    measures = block.measures if block is not None and block.random else {}
    return {key: one for key, one in measures.items() if one.low is not None}


def half_width(one: Estimate | None, digits: int = 1, unit: float = 1) -> str:
    """Return `±1.2`, or nothing where runs do not scatter.

    The longer side counts: an interval that ends at 0 or at 100 % is cut there.
    """
    if one is None or one.low is None or one.high is None:
        return ""
    return f"±{max(one.high - one.mean, one.mean - one.low) * unit:,.{digits}f}"


def replication_lines(block: Replications | None) -> list[str]:
    """Return what must be said about the replications, in words."""
    if block is None:
        return []
    seeds = f"seeds {block.seeds[0]} to {block.seeds[-1]}"
    if not block.random:
        return [
            f"{block.n} runs, {seeds}, were equal to the nanosecond: nothing depends on the seed, so there "
            "are no confidence intervals"
        ]
    lines = [f"Means over {block.n} runs, {seeds}; ± {block.confidence:.0%} confidence (Student's t)"]
    if block.unstable:
        lines.append(f"unstable in {block.unstable} of {block.n} runs: the queue grew until the end")
    return lines


# The table of published figures that `simserve run` prints under a scenario that names some.


def published_table(folder: Path) -> Group | None:
    """Return the published figures and ours, from the stored runs of `folder`; None if it names none."""
    from simserve.metrics.comparison import published_rows, read_comparison
    from simserve.metrics.store import read_results
    from simserve.report.run.headline import FAR, published_words

    comparison = read_comparison(folder)
    rows = comparison.table["published"] if comparison else published_rows({"base": read_results(folder)})
    rows = published_words(rows)
    if not rows:
        return None
    table = FittedTable(title="Published figures", title_style="bold")
    table.add_column("figure")
    for name in ("published", "ours", "ratio"):
        table.add_column(name, justify="right")
    for row in rows:
        ratio = "-" if row["ratio"] is None else f"{row['ratio']:.2f}"
        table.add_row(row["figure"], row["published_text"], row["ours_text"], ratio)
    sources = dict.fromkeys(f"Source: {row['source']}" for row in rows)
    far = (row for row in rows if row["differs"] and (row["ratio"] is None or abs(row["ratio"] - 1) > FAR))
    reasons = dict.fromkeys(f"Why ours differs: {row['differs']}" for row in far)
    return Group(table, *map(Text, (*sources, *reasons)))


# The table that `simserve run` prints: the answer in 80 columns, details are in the report.

LATENCIES = {
    "TTFT": "ttft_ms",
    "TPOT": "tpot_ms",
    "ITL": "itl_ms",
    "E2E": "e2e_ms",
    "queueing": "queueing_ms",
}
_SHOWN = ("mean", "p50", "p90", "p99", "max")
_VERDICTS = {
    "stable": "stable",
    "unstable": "UNSTABLE",
    "too short": "too short to tell if stable",
    "not judged": "stability not judged",
}


def summary_table(scenario: Scenario, summary: Summary) -> Group:
    """Return the latencies of the whole run as a table, and the rates as lines below it."""
    table = FittedTable(title=scenario.name, title_style="bold")
    table.add_column("ms, whole run")
    for name in _SHOWN:
        table.add_column(name, justify="right")
    spread = spread_of(summary.replications)
    for label, field in LATENCIES.items():
        table.add_row(label, *_cells(getattr(summary.whole, field), field, spread))
        if any(f"whole.{field}.{name}" in spread for name in _SHOWN):
            table.add_row("", *(half_width(spread.get(f"whole.{field}.{name}")) for name in _SHOWN))
    return Group(table, *map(Prose, _lines(scenario, summary)))


def _cells(found: Distribution, field: str, spread: Mapping[str, Estimate]) -> list[str]:
    keys = {name: f"whole.{field}.{name}" for name in _SHOWN}
    return [
        _number(spread[key].mean if key in spread else getattr(found, name)) for name, key in keys.items()
    ]


def _number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _abandoned(requests: int) -> str:
    return f"{requests:,} abandoned by their clients, " if requests else ""


def _rates_over_seeds(spread: Mapping[str, Estimate]) -> list[str]:
    """Return the rates as means with half-widths, where seeds move them."""
    parts = [
        f"{one.mean:,.{digits}f} {half_width(one, digits)} {words}"
        for key, words, digits in _RATES
        if (one := spread.get(key))
    ]
    return [", ".join(parts[:2]), *parts[2:]] if parts else []


_RATES = (
    ("rates.requests_per_s", "requests/s", 2),
    ("rates.output_tokens_per_s", "output tokens/s", 0),
    ("rates.goodput_requests_per_s", "good requests/s", 2),
)


def _rate_lines(summary: Summary) -> list[str]:
    rates = summary.rates
    served = f"{_number(rates.requests_per_s, 2)} requests/s"
    if rates.offered_requests_per_s is not None:
        served += f" of {_number(rates.offered_requests_per_s, 2)} offered"
    if rates.goodput_requests_per_s is not None:
        served += f", {_number(rates.goodput_requests_per_s, 2)} good"
    drain = "" if rates.drain_s is None else f"; drained in {_number(rates.drain_s)} s after the last arrival"
    return [
        f"{served}; {_number(rates.output_tokens_per_s, 0)} output tokens/s",
        f"{_VERDICTS[summary.stability.verdict]}{drain}",
    ]


def _lines(scenario: Scenario, summary: Summary) -> list[str]:
    counts, whole = summary.counts, summary.whole
    spread = spread_of(summary.replications)
    lines = [
        *replication_lines(summary.replications),
        *_rates_over_seeds(spread),
        f"{'Seed ' + str(summary.replications.seeds[0]) + ': ' if spread and summary.replications else ''}"
        f"{counts.completed:,} of {counts.requests:,} requests completed, {counts.refused:,} refused, "
        f"{_abandoned(counts.abandoned)}{counts.unfinished:,} unfinished, {whole.preemptions:,} preemptions",
        *_rate_lines(summary),
    ]
    if summary.slo_verdict is not None:
        found = summary.slo_verdict
        lines.append(f"SLO {found.outcome}: {found.text}. Judged by {found.basis}")
    if summary.cost_per_million_output_tokens is not None:
        cost = money(summary.cost_per_million_output_tokens, scenario.currency)
        lines.append(f"{cost} per million output tokens")
    for limit in summary.limits:
        pool = f"{limit.pool}: " if len(summary.limits) > 1 else ""
        lines.append(f"{pool}limited by {limit.resource} ({both_words(asdict(limit))}): {limit.evidence}")
    for advice in summary.advice or []:
        sets = " ".join(f"--set {shlex.quote(text)}" for text in advice.set)
        lines.append(f"would help: {advice_words(asdict(advice))}: {sets}")
    shares = ", ".join(f"{share:.1%} {name}" for name, share in summary.provenance.items() if share)
    if shares:
        lines.append(f"Step times: {shares}")
    if summary.provenance.get("analytic", 0.0) > ALL_ESTIMATED:
        lines.append("All of it is estimated: no kernel of this GPU and model was measured (roofline)")
    return lines


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
        table.add_row(name, *_comparison_table_cells(summary, spread), *within, _done(summary))
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


def _comparison_table_cells(summary: Summary, spread: Mapping[str, Estimate]) -> list[str]:
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
    return [*map(_comparison_table_number, values), "-" if tokens is None else f"{tokens:,.0f}"]


def _comparison_table_number(value: float | None) -> str:
    """Write ms with one decimal, or none from a second on, so that eight columns fit."""
    return "-" if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:,.1f}"
