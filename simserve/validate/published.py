"""Published results against simulated ones, row by row: the same statistic on both sides.

A statistic that the source does not name (`_unstated`) is compared with the mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from simserve.core import Result, Status
from simserve.errors import ProfileError, ScenarioError
from simserve.scenario import Deployment, build
from simserve.validate.measured import STATISTICS, Pair, compare
from simserve.validate.measured_replay import Replay, deployment_of, replay
from simserve.validate.measured_runs import Float64
from simserve.validate.published_requests import queue_lag_s, requests_file, run_of
from simserve.validate.published_requests import read_rows as read_rows
from simserve.validate.published_row import NotSimulatable, Row, setup_of

ROWS_PER_PROCESS = 16
"""Rows after which a worker is replaced, so that what it compiled does not pile up."""

_STATISTICS = ("mean", "p50", "p90", "p99", "unstated")


@dataclass(frozen=True)
class RowOutcome:
    """One row: its errors, or why it was not run."""

    row: Row
    reason: str = ""
    """Why it was not run; empty if it was."""
    metrics: dict[str, Pair] = field(default_factory=dict)
    """By column of the table (ms, requests/s, tokens/s); of replayed requests: as measured runs (s, 1/s)."""
    assumed: tuple[str, ...] = ()
    estimated: tuple[str, ...] = ()
    """Kernels costed without a measured table."""


def run_row(row: Row, table: Path, overhead: str | None = None, profiles: Sequence[str] = ()) -> RowOutcome:
    """Simulate a row, or say why not; where `table` has a file of the row's requests, replay those.

    `overhead` replaces the engine's overhead constants in both cases; `profiles` are looked into first.
    """
    path = requests_file(row, table)
    try:
        if path is not None:
            return _run_requests(row, path, overhead, profiles)
        return _run_row(row, overhead, profiles)
    except (NotSimulatable, ScenarioError, ProfileError) as error:
        return RowOutcome(row, " ".join(str(error).split()))


def run_rows(
    rows: Sequence[Row],
    table: Path,
    overhead: str | None = None,
    profiles: Sequence[str] = (),
    workers: int = 1,
) -> Iterator[RowOutcome]:
    """Yield the outcome of each row in order (arguments as in `run_row`), on several processes if asked."""
    one = partial(run_row, table=table, overhead=overhead, profiles=profiles)
    if workers == 1 or len(rows) == 1:
        yield from map(one, rows)
        return
    # Not a ProcessPoolExecutor: that of Python 3.11 stops for good when its workers are due for replacement.
    with get_context("spawn").Pool(workers, maxtasksperchild=ROWS_PER_PROCESS) as pool:
        yield from pool.imap(one, rows)


def _run_requests(row: Row, path: Path, overhead: str | None, profiles: Sequence[str]) -> RowOutcome:
    run = run_of(row, path)
    deployment = deployment_of(run, overhead, profiles)
    replayed = replay(run, overhead, profiles)
    whole = compare(replayed)[0]
    lag_s = queue_lag_s(path)
    queued = {} if lag_s is None else _from_queue(replayed, lag_s, deployment)
    assumed = () if run.number("gpu_kv_blocks") else ("KV blocks by the memory ledger",)
    return RowOutcome(row, "", {**whole.metrics, **queued}, assumed, deployment.pools[0].latency.estimated)


def _from_queue(replayed: Replay, lag_s: Float64, deployment: Deployment) -> dict[str, Pair]:
    """Return TTFT from the engine's queue: without the lag before it, simulated without the client's time."""
    client_s = deployment.pools[0].engine.overhead.client_us / 1e6
    sim, real = replayed.ttft_s - client_s, replayed.run.ttft_s - lag_s
    return {
        f"ttft_from_queue_{name}": Pair(_statistic(name, sim), _statistic(name, real))
        for name in STATISTICS["ttft"]
    }


def _run_row(row: Row, overhead: str | None, profiles: Sequence[str]) -> RowOutcome:
    setup = setup_of(row, overhead, profiles)
    deployment = build(setup.scenario)
    result = deployment.simulate()
    if not (result.status == Status.COMPLETED).all():
        return RowOutcome(row, f"refused: {'; '.join(result.reasons)}")
    simulated = _simulated(result)
    metrics = {
        name: Pair(value, float(row[name]))
        for name, value in simulated.items()
        if row.get(name) and float(row[name]) > 0
    }
    return RowOutcome(row, "", metrics, setup.assumed, deployment.pools[0].latency.estimated)


def medians(outcomes: Sequence[RowOutcome]) -> dict[str, float]:
    """Return the median absolute error of each metric over the rows that ran, in percent."""
    names = dict.fromkeys(name for one in outcomes for name in one.metrics)
    return {
        name: float(np.median([abs(one.metrics[name].error_pct) for one in outcomes if name in one.metrics]))
        for name in names
    }


def as_json(outcomes: Sequence[RowOutcome]) -> dict[str, Any]:
    """Return rows that ran, rows that did not with the reason, and medians."""
    ran = [one for one in outcomes if not one.reason]
    return {
        "rows": [
            {
                "id": one.row["row_id"],
                "group": one.row.get("group", ""),
                "metrics": {
                    name: {"sim": pair.sim, "real": pair.real, "err_pct": pair.error_pct}
                    for name, pair in one.metrics.items()
                },
                "assumed": [*one.assumed, *one.estimated],
            }
            for one in ran
        ],
        "not_run": [{"id": one.row["row_id"], "reason": one.reason} for one in outcomes if one.reason],
        "median_ape": medians(ran),
        "median_ape_by_group": {
            group: medians([one for one in ran if one.row.get("group", "") == group])
            for group in dict.fromkeys(one.row.get("group", "") for one in ran)
        },
    }


def _simulated(result: Result) -> dict[str, float]:
    """Return every statistic that a table may hold, by its column."""
    ttft = (result.first_token_ns - result.arrival_ns) / 1e6
    e2e = (result.last_token_ns - result.arrival_ns) / 1e6
    several = result.output_tokens > 1
    tpot = (e2e - ttft)[several] / (result.output_tokens[several] - 1)
    columns = {"ttft": ttft, "tpot": tpot, "e2e": e2e}
    found = {
        f"{name}_ms_{statistic}": _statistic(statistic, values)
        for name, values in columns.items()
        for statistic in _STATISTICS
    }
    found["itl_ms_mean"] = result.gaps.sum_ns / max(1, int(result.gaps.count.sum())) / 1e6
    seconds = (int(result.last_token_ns.max()) - int(result.arrival_ns.min())) / 1e9
    found["req_s"] = len(result) / seconds
    found["output_tok_s"] = int(result.output_tokens.sum()) / seconds
    found["total_tok_s"] = found["output_tok_s"] + int(result.prompt_tokens.sum()) / seconds
    return found


def _statistic(name: str, values: Float64) -> float:
    if name in ("mean", "unstated"):
        return float(np.mean(values))
    return float(np.percentile(values, float(name[1:])))
