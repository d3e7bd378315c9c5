"""Names of statistics in the tools' tables, in our words: avg, median, p99 -> mean, p50, p99."""

from __future__ import annotations

from simserve.validate.importers.json_file import Record

_OURS = {
    "mean": "mean",
    "avg": "mean",
    "median": "p50",
    "p50": "p50",
    "p90": "p90",
    "p95": "p95",
    "p99": "p99",
    "max": "max",
}


def statistics_of(record: Record, name: str, scale: float) -> dict[str, float]:
    """Return the statistics of one quantity under our names: `{"ttft_ms.p99": 812.0}`; times `scale`."""
    found: dict[str, float] = {}
    for theirs, ours in _OURS.items():
        if theirs in record:
            found.setdefault(f"{name}.{ours}", scale * record.number(theirs))
    return found
