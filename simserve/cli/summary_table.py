"""The table that `simserve run` prints: the answer in 80 columns, details are in the report."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

from rich.console import Group
from rich.text import Text

from simserve.cli.fitted import FittedTable
from simserve.cli.replications_text import half_width, replication_lines, spread_of
from simserve.metrics import Summary
from simserve.metrics.distribution import Distribution
from simserve.metrics.replications import Estimate
from simserve.report.verdict import verdict
from simserve.report.warnings import ALL_ESTIMATED
from simserve.scenario import Scenario, SloSpec

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
    return Group(table, *(Text(line) for line in _lines(scenario, summary)))


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
    ("whole.requests_per_s", "requests/s", 2),
    ("whole.output_tokens_per_s", "output tokens/s", 0),
    ("whole.slo.goodput_requests_per_s", "good requests/s", 2),
)


def _slo_line(slo: SloSpec, summary: Summary) -> list[str]:
    """Return the verdict with its targets: `SLO missed: 84.5% within ttft_ms 500 (target: 99%)`.

    Several seeds are judged by their means, so means stand beside the verdict.
    """
    found = verdict(summary.to_dict(), {"slo_asked": slo.model_dump(include={"attainment", "percentiles"})})
    word, parts, own = found.word if found else "missed", [], summary.whole.slo
    if word == "not shown":
        word = "inconclusive"
    target = f"(target: {slo.attainment * 100:g}%)"
    limits = [f"{name} {limit:g}" for name, limit in slo.limits().items() if name != "itl_ms"]
    share = _judged(summary, "slo.attainment", own.attainment if own else None)
    if limits and share is not None:
        parts.append(f"{share:.1%} within {', '.join(limits)} {target}")
    gaps = _judged(summary, "slo.itl_within_share", own.itl_within_share if own else None)
    if slo.itl_ms is not None and gaps is not None:
        parts.append(f"{gaps:.1%} of gaps within itl_ms {slo.itl_ms:g} {target}")
    for key, targets in slo.percentiles.items():
        for name, limit in targets.items():
            value = _number(
                _judged(summary, f"{key}.{name}", getattr(getattr(summary.whole, key), name, None))
            )
            parts.append(f"{name} of {key} {value} (target: {limit:g})")
    if own is not None and own.limits and own.attainment is not None:
        rate = _judged(summary, "slo.goodput_requests_per_s", own.goodput_requests_per_s)
        parts.append(f"goodput {_number(rate, 2)} requests/s")
    text = f"SLO {word}: {', '.join(parts) or 'nothing completed'}"
    return textwrap.wrap(text, 80, break_long_words=False, break_on_hyphens=False)


def _judged(summary: Summary, name: str, own: float | None) -> float | None:
    """Return what the verdict judges: the mean over the seeds where there are several."""
    if summary.replications is None:
        return own
    found = summary.replications.measures.get(f"whole.{name}")
    return found.mean if found else None


def _lines(scenario: Scenario, summary: Summary) -> list[str]:
    counts, whole = summary.counts, summary.whole
    spread = spread_of(summary.replications)
    lines = [
        *replication_lines(summary.replications),
        *_rates_over_seeds(spread),
        f"{'Seed ' + str(summary.replications.seeds[0]) + ': ' if spread and summary.replications else ''}"
        f"{counts.completed:,} of {counts.requests:,} requests completed, {counts.refused:,} refused, "
        f"{_abandoned(counts.abandoned)}{counts.unfinished:,} unfinished, {whole.preemptions:,} preemptions",
        f"{_number(whole.requests_per_s, 2)} requests/s, {_number(whole.output_tokens_per_s, 0)} output "
        f"tokens/s, {_number(whole.total_tokens_per_s, 0)} tokens/s over {_number(whole.duration_s)} s; "
        f"{_VERDICTS[summary.stability.verdict]}",
    ]
    if scenario.slo is not None:
        lines += _slo_line(scenario.slo, summary)
    if summary.cost_per_million_output_tokens is not None:
        lines.append(f"{summary.cost_per_million_output_tokens:,.2f} per million output tokens")
    for limit in summary.limits:
        pool = f"{limit.pool}: " if len(summary.limits) > 1 else ""
        lines.append(f"{pool}limited by {limit.resource}: {limit.evidence}")
    shares = ", ".join(f"{share:.1%} {name}" for name, share in summary.provenance.items() if share)
    if shares:
        lines.append(f"Step times: {shares}")
    if summary.provenance.get("analytic", 0.0) > ALL_ESTIMATED:
        lines.append("All of it is estimated: no kernel of this GPU and model was measured (roofline)")
    return lines
