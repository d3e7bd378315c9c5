"""Published results against simulated ones, row by row: the same statistic on both sides.

A statistic that the source does not name (`_unstated`) is compared with the mean.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from simserve.core import Result, Status
from simserve.deploy.build import Deployment, build
from simserve.errors import ProfileError, ScenarioError, TraceError, nearest
from simserve.validation.measured import STATISTICS, Pair, compare
from simserve.validation.measured_replay import Replay, deployment_of, replay
from simserve.validation.measured_runs import Float64, MeasuredRun
from simserve.validation.published_row import NotSimulatable, Row, setup_of

# Published runs with a file per request (LLMServingSim's benchmarks of vLLM), as measured runs.
#
# The client's clock and the engine's differ: the files align them so that the smallest lag from arrival to
# queue is 0. TTFT counts from the arrival, as a client sees it, and once more from the engine's queue.

_FILE = re.compile(r"per-request file: ([^;,\s]+\.csv)")
_COLUMNS = ("arrival_s", "input_tokens", "output_tokens", "first_token_s", "last_token_s")


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a table of published results; raises `TraceError` if it is none."""
    if not path.is_file():
        raise TraceError(f"{path}: no such file")
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows: list[Row] = list(csv.DictReader(file))
    for column in ("row_id", "simulatable", "model", "gpu", "framework"):
        if not rows or column not in rows[0]:
            raise TraceError(f"{path}: lacks the column {column!r} of a table of published results")
    return rows


def requests_file(row: Row, table: Path) -> Path | None:
    """Return the file of a row's requests, None if the row has none."""
    named = _FILE.search(row.get("notes") or "")
    return table.parent / named[1] if named else None


def read_published_runs(table: Path, only: Sequence[str]) -> list[MeasuredRun]:
    """Return the rows of a table of published results that have a file of requests, selected by id or group.

    Raises `TraceError` naming the part that matches nothing.
    """
    rows = [row for row in read_rows(table) if requests_file(row, table)]
    for part in only:
        if not any(part in row["row_id"] or part in row["group"] for row in rows):
            known = [row["group"] for row in rows]
            raise TraceError(f"{table}: no row with requests is called {part!r}{nearest(part, known)}")
    wanted = [row for row in rows if any(part in row["row_id"] or part in row["group"] for part in only)]
    return [run_of(row, path) for row in wanted if (path := requests_file(row, table)) is not None]


def run_of(row: Row, path: Path) -> MeasuredRun:
    """Return a row's requests as a measured run; raises `TraceError` naming the column that is missing."""
    table = pd.read_csv(path)
    missing = [name for name in _COLUMNS if name not in table.columns]
    if missing:
        raise TraceError(f"{path}: lacks the column {missing[0]!r}")
    table = table.sort_values("arrival_s", kind="stable")
    arrival = table["arrival_s"].to_numpy(np.float64)
    count = len(table)
    return MeasuredRun(
        id=row["group"],
        facts=_facts(row),
        stage=np.zeros(count, np.int64),
        arrival_ns=np.rint((arrival - arrival[0]) * 1e9).astype(np.int64),
        prompt_tokens=table["input_tokens"].to_numpy(np.int64),
        output_tokens=table["output_tokens"].to_numpy(np.int64),
        prompt_id=np.arange(count),
        ttft_s=table["first_token_s"].to_numpy(np.float64) - arrival,
        e2e_s=table["last_token_s"].to_numpy(np.float64) - arrival,
        failed=np.zeros(count, np.bool_),
        steps_file=None,
    )


def queue_lag_s(path: Path) -> Float64 | None:
    """Return the time from each arrival to the engine's queue, float64[requests], in order of arrival.

    None if the file does not say when requests were queued.
    """
    table = pd.read_csv(path).sort_values("arrival_s", kind="stable")
    if "queued_s" not in table.columns:
        return None
    return (table["queued_s"] - table["arrival_s"]).to_numpy(np.float64)


def _facts(row: Row) -> dict[str, str]:
    """Return the facts that a replay reads, from the columns and the settings in words."""
    settings = row.get("scheduler_settings", "")
    return {
        "engine": f"{row['framework']} {row['framework_version']}",
        "gpu": row["gpu"],
        "model": row["model"],
        "weights_dtype": row["weights_precision"],
        "tp": row["tp"],
        "dp": row["dp"],
        "ep": row["ep"],
        "overloaded": "False",
        "max_model_len": "",
        "max_num_seqs": _setting(settings, "max_num_seqs"),
        "max_num_batched_tokens": _setting(settings, "max_num_batched_tokens"),
        "block_size": _setting(settings, "block"),
        "gpu_kv_blocks": _setting(settings, "num_gpu_blocks"),
        "system_prompt_tokens": "",
        "prompts_per_group": "",
    }


def _setting(text: str, name: str) -> str:
    found = re.search(rf"\b{name} (\d+)", text)
    return found[1] if found else ""


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
