"""What is kept of one run of a study: numbers by column, and the batches of its targets."""

from __future__ import annotations

from typing import Any

from simserve.metrics import Summary
from simserve.metrics.limit_words import limited_by
from simserve.metrics.measures import figures_of
from simserve.metrics.slo_verdict import Evidence
from simserve.metrics.statistics import Batch
from simserve.metrics.targets import batches_of, targets_of
from simserve.scenario.build import Deployment

Row = dict[str, Any]

LATENCIES = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms", "queueing_ms")
STATISTICS = ("mean", "p50", "p90", "p95", "p99")
RATES = ("requests_per_s", "output_tokens_per_s", "total_tokens_per_s")
STEADY = ("hit_rate", "kv_use_mean", "preemptions")
COUNTS = ("requests", "completed", "refused", "unfinished")
USES = ("busy", "mfu", "mbu")
BASES = ("measured", "interpolated", "extrapolated", "analytic")
"""Where step times come from; `NAME_share` is its share of the simulated busy time."""


def columns() -> list[str]:
    """Return the names of the numbers of a row."""
    names = [
        "gpus",
        "price_per_hour",
        "cost_per_million_output_tokens",
        "attainment",
        "goodput_requests_per_s",
    ]
    names += ["goodput_per_gpu", "output_tokens_per_s_per_gpu", *COUNTS, *RATES, *STEADY, *USES]
    return [*names, *(f"{key}.{name}" for key in LATENCIES for name in STATISTICS), *_SHARES]


_SHARES = (*(f"{name}_share" for name in BASES), "estimated_share")
"""The last is that of all that is not within a measured range."""


def simulate_row(deployment: Deployment) -> Row:
    """Simulate a deployment once; the same deployment gives the same row."""
    result = deployment.simulate()
    row = row_of(deployment.summarize(result))
    targets = targets_of(deployment.slo)
    row["slo"] = _plain(batches_of(result, targets))
    row["slo_ordered"] = _plain(batches_of(result, targets, whole=True))
    row["simulated_requests"] = len(result)
    return row


def evidence_of(row: Row) -> Evidence:
    """Return what a row says about the targets."""
    return Evidence(row["slo"], row["stability"], row.get("needed_requests"))


def _plain(batches: dict[str, list[Batch]]) -> dict[str, list[list[int]]]:
    return {name: [list(batch) for batch in found] for name, found in batches.items()}


def row_of(summary: Summary) -> Row:
    """Return the numbers of a summary by column: `rates`, and latencies of the whole run."""
    figures = figures_of(summary.to_dict(), {})
    whole, steady, rates, counts = (figures[name] for name in ("whole", "steady", "rates", "counts"))
    gpus = figures["deployment"]["gpus"]
    slo = steady["slo"] or {}
    goodput, output = rates["goodput_requests_per_s"], rates["output_tokens_per_s"]
    row: Row = {
        "gpus": gpus,
        "price_per_hour": figures["price_per_hour"],
        "cost_per_million_output_tokens": figures["cost_per_million_output_tokens"],
        "attainment": slo.get("attainment"),
        "goodput_requests_per_s": goodput,
        "goodput_per_gpu": goodput / gpus if goodput is not None and gpus else None,
        "output_tokens_per_s_per_gpu": output / gpus if output is not None and gpus else None,
        "stability": figures["stability"]["verdict"],
        "arrival_period_s": figures["stability"]["arrival_period_s"],
        "needed_s": figures["stability"]["needed_s"],
        "needed_requests": figures["stability"]["needed_requests"],
    }
    basis = figures["provenance"]
    row |= {f"{name}_share": basis.get(name, 0.0) for name in BASES}
    row["estimated_share"] = row["extrapolated_share"] + row["analytic_share"]
    row |= {name: counts[name] for name in COUNTS} | {name: rates[name] for name in RATES}
    row |= {name: steady[name] for name in STEADY}
    row |= {name: _mean(figures["pools"], name) for name in USES}
    for key in LATENCIES:
        row |= {f"{key}.{name}": whole[key][name] for name in STATISTICS}
    row["pools"] = [
        {name: pool[name] for name in ("name", "gpus", "busy", "mfu", "mbu", "kv_use_mean", "kv_use_peak")}
        for pool in figures["pools"]
    ]
    row["limited_by"] = limited_by(figures["limits"])
    row["warnings"] = summary.warnings
    return row


def _mean(pools: list[dict[str, Any]], name: str) -> float | None:
    """Return the mean over all GPUs; None if a pool has no figure."""
    values = [(pool["gpus"], pool[name]) for pool in pools]
    if not values or any(value is None for _, value in values):
        return None
    return sum(gpus * value for gpus, value in values) / sum(gpus for gpus, _ in values)
