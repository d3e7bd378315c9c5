"""What the terminal says about runs with several seeds: means and half-widths, or why there are none."""

from __future__ import annotations

from collections.abc import Mapping

from simserve.metrics.replications import Estimate, Replications


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
