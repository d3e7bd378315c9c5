"""The table that `simserve run` prints: the answer in 80 columns, details are in the report."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict

from rich.console import Group

from simserve.cli.fitted import FittedTable, Prose
from simserve.cli.replications_text import half_width, replication_lines, spread_of
from simserve.metrics import Summary
from simserve.metrics.advice import advice_words
from simserve.metrics.distribution import Distribution
from simserve.metrics.limit_words import both_words
from simserve.metrics.replications import Estimate
from simserve.report.format import money
from simserve.report.warnings import ALL_ESTIMATED
from simserve.scenario import Scenario

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
