"""What a user must know about a finished run: the reasons for exit code 3."""

from __future__ import annotations

from simserve.metrics import Summary
from simserve.metrics.slo_verdict import MET
from simserve.metrics.stability import TOO_SHORT, too_short_words


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
