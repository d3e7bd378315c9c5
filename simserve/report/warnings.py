"""What a reader must know before believing a run: what it warned of itself, and what its numbers say."""

from __future__ import annotations

from typing import Any

from simserve.metrics.stability import too_short_words
from simserve.report.format import number, percent

EXTRAPOLATED = 0.05
"""Share of simulated time outside the measured range of the kernels from which on it is said first."""

ESTIMATED = 0.05
"""Share of simulated time costed without any table from which on it is said first."""

ALL_ESTIMATED = 0.999
"""Share of simulated time costed without any table from which on the run is called an estimate."""


def warnings(summary: dict[str, Any]) -> list[str]:
    """Return a line per warning, the most serious first."""
    counts, share = summary["counts"], summary["provenance"].get("extrapolated", 0.0)
    lines = []
    if summary["stability"]["verdict"] == "unstable":
        lines.append(
            "Overloaded: the queue never stopped growing, so latencies depend only on how long you simulate. "
            f"{_sentence(summary['stability']['reason'])}"
        )
    if summary["stability"]["verdict"] == "too short":
        lines.append(_sentence(too_short_words(summary["stability"])))
    lines += [_sentence(line) for line in summary["warnings"]]
    for what in ("refused", "abandoned", "unfinished"):
        if counts.get(what):
            lines.append(
                f"{number(counts[what])} of {number(counts['requests'])} requests were {what}"
                + (" by their clients." if what == "abandoned" else ".")
            )
    estimated = summary["provenance"].get("analytic", 0.0)
    if estimated > ALL_ESTIMATED:
        lines.append(
            "All of it is estimated: no kernel of this GPU and model was measured, so every step time is a "
            "roofline at assumed efficiencies."
        )
    elif estimated > ESTIMATED:
        lines.append(
            f"{percent(estimated)} of the simulated time is estimated by roofline: "
            "those kernels were not measured."
        )
    if counts.get("wasted_tokens"):
        lines.append(f"{number(counts['wasted_tokens'])} output tokens were made for clients that had gone.")
    if share > EXTRAPOLATED:
        lines.append(
            f"{percent(share)} of the simulated time is extrapolated: outside the sizes that were measured."
        )
    return lines


def _sentence(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return text if text.endswith(".") else f"{text}."
