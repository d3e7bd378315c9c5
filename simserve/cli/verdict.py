"""What a user must know about a finished run: the reasons for exit code 3."""

from __future__ import annotations

from simserve.metrics import Summary
from simserve.metrics.distribution import PERCENTILES
from simserve.metrics.stability import TOO_SHORT, too_short_words
from simserve.scenario import SloSpec

KEPT = tuple(f"p{number}" for number in PERCENTILES)
"""Percentiles that a run's summary holds."""


def warnings_of(summary: Summary, slo: SloSpec | None) -> list[str]:
    """Return a line per reason; `slo` is given only if missing it is to count."""
    counts, lines = summary.counts, []
    if not counts.completed:
        reasons = "; ".join(f"{n:,} x {text}" for text, n in counts.reasons.items())
        lines.append(f"nothing completed: {counts.requests:,} requests, {reasons or 'no reason recorded'}")
    if counts.abandoned:
        lines.append(
            f"clients gave up on {counts.abandoned:,} of {counts.requests:,} requests; "
            f"{counts.wasted_tokens:,} output tokens were made for nobody"
        )
    if summary.stability.verdict == "unstable":
        lines.append(f"unstable, the load is not carried: {summary.stability.reason}")
    if summary.stability.verdict == TOO_SHORT:
        lines.append(too_short_words(summary.stability))
    block = summary.replications
    if block is not None and block.random and block.unstable and summary.stability.verdict != "unstable":
        lines.append(f"unstable in {block.unstable} of {block.n} runs with other seeds")
    return lines + (_missed(summary, slo) if slo else [])


def _missed(summary: Summary, slo: SloSpec) -> list[str]:
    return [*_missed_percentiles(summary, slo), *_missed_shares(summary, slo)]


def _missed_percentiles(summary: Summary, slo: SloSpec) -> list[str]:
    """Return a line per percentile target of the whole run that is missed, or that a run does not keep."""
    lines = []
    for key, limits in slo.percentiles.items():
        for name, limit in limits.items():
            if name not in KEPT:
                lines.append(
                    f"Cannot check the SLO: {name} of {key} is not stored (stored: {', '.join(KEPT)})"
                )
                continue
            value = _over_seeds(summary, f"{key}.{name}", getattr(getattr(summary.whole, key), name))
            if value is None or value > limit:
                shown = "unknown" if value is None else f"{value:,.4g} ms"
                lines.append(f"SLO missed: {name} of {key} is {shown}, target: {limit:g} ms")
    return lines


def _missed_shares(summary: Summary, slo: SloSpec) -> list[str]:
    found = summary.whole.slo
    if found is None:
        return []
    shares = {"of requests meet the limits": _over_seeds(summary, "slo.attainment", found.attainment)}
    if slo.itl_ms is not None:
        within = _over_seeds(summary, "slo.itl_within_share", found.itl_within_share)
        shares["of gaps between tokens meet itl_ms"] = within
    return [
        f"SLO missed: {'none' if share is None else f'{share:.2%}'} {what}, target: {slo.attainment:.2%}"
        for what, share in shares.items()
        if share is None or share < slo.attainment
    ]


def _over_seeds(summary: Summary, name: str, own: float | None) -> float | None:
    """Return the mean over the replications, if there are several; None if one of them has no such number."""
    if summary.replications is None:
        return own
    found = summary.replications.measures.get(f"whole.{name}")
    return None if found is None else found.mean
