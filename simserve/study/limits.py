"""What limits a deployment, and which target would break first, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simserve.core.efficiency import COMPUTE_EFFICIENCY, MEMORY_EFFICIENCY
from simserve.metrics.targets import Target
from simserve.study.row import Row

BUSY = 0.85
"""Share of busy time from which on throughput, not the length of a step, is the limit [our choice]."""
KV_FULL = 0.95
_WORDS = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "itl_ms": "ITL", "e2e_ms": "E2E"}
_STORED = (50, 90, 95, 99)


def limit_words(row: Row) -> str:
    """Return what a run was limited by, from the use of its hardware."""
    pools = row["pools"]
    full = [pool for pool in pools if (pool["kv_use_peak"] or 0) >= KV_FULL]
    if row["preemptions"] or full:
        name = f" of {full[0]['name']}" if full and len(pools) > 1 else ""
        return f"KV memory{name}: {row['preemptions']:,} preemptions, peak use {_percent(_peak(pools))}"
    busiest = max(pools, key=lambda pool: pool["busy"] or 0)
    name = f" of {busiest['name']}" if len(pools) > 1 else ""
    if (busiest["busy"] or 0) < BUSY:
        return f"step time, not throughput: busy {_percent(busiest['busy'])}{name}"
    compute = (busiest["mfu"] or 0) / COMPUTE_EFFICIENCY
    memory = (busiest["mbu"] or 0) / MEMORY_EFFICIENCY
    if compute >= memory:
        return f"compute{name}: MFU {_percent(busiest['mfu'])}, busy {_percent(busiest['busy'])}"
    return f"memory bandwidth{name}: MBU {_percent(busiest['mbu'])}, busy {_percent(busiest['busy'])}"


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


def _peak(pools: list[dict[str, Any]]) -> float | None:
    return max((pool["kv_use_peak"] or 0 for pool in pools), default=None)


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share * 100:.3g} %"
