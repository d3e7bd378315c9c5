"""By how much a deployment misses its targets, or which of them would break first, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simserve.metrics.targets import Target

_WORDS = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "itl_ms": "ITL", "e2e_ms": "E2E"}
_STORED = (50, 90, 95, 99)


def first_to_break(means: dict[str, Any], targets: Sequence[Target]) -> str:
    """Return the limit that is used up most, at the stored percentile next to the target's share."""
    found = []
    for target in targets:
        percentile = next((p for p in _STORED if p >= 100 * target.share), _STORED[-1])
        for key, limit in target.limits:
            value = means.get(f"{key}.p{percentile}")
            if value is not None:
                used = f"{value / limit * 100:.0f} % of its limit"
                words = f"{_WORDS[key]}: p{percentile} is {value:,.4g} ms, {used}"
                found.append((value / limit, words))
    return max(found)[1] if found else "nothing was measured"


def shortfall_words(point: dict[str, Any], stopped: str) -> str:
    """Return by how much a deployment misses."""
    if stopped:
        return stopped
    if point["stability"] == "unstable":
        return "it falls behind the arrivals"
    worst = min(point["targets"], key=lambda target: (target["low"] or 0) - target["share"])
    estimate, low = worst["estimate"] or 0, worst["low"] or 0
    if estimate >= worst["share"]:
        return (
            f"{worst['words']}: {_percent(estimate)}, but only {_percent(low)} are shown; "
            "more requests or replications may show it"
        )
    return f"{worst['words']}: {_percent(estimate)}, {(worst['share'] - estimate) * 100:.2g} points short"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share * 100:.3g} %"
