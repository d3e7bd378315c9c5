"""Published runs with a file per request (LLMServingSim's benchmarks of vLLM), as measured runs.

The client's clock and the engine's differ: the files align them so that the smallest lag from arrival to
queue is 0. TTFT counts from the arrival, as a client sees it, and once more from the engine's queue.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from simserve.errors import TraceError, nearest
from simserve.validate.measured_runs import Float64, MeasuredRun
from simserve.validate.published_row import Row

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
