"""An expert-load trace of our own: rows (time_s, layer, expert, count), as CSV or Parquet.

A count is the picks of an expert in a layer since the time before (rows of 0 may be left out). Shares of an
interval hold from its time until the next. Layers are numbered from 0 over the MoE layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simserve.errors import TraceError
from simserve.units import NS_PER_S

COLUMNS = ("time_s", "layer", "expert", "count")


@dataclass(frozen=True)
class Recording:
    """Counts by interval."""

    start_ns: NDArray[np.int64]
    """When each interval begins, int64[intervals], ascending; the first holds from the start of a run."""
    counts: NDArray[np.float64]
    """float64[intervals, layers, experts]."""


def read_recording(path: Path, layers: int, experts: int) -> Recording:
    """Read a trace; raises `TraceError` with the row for whatever does not fit the model."""
    import pandas as pd  # slow to import, and hardly any run has such a trace

    try:
        table = pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise TraceError(f"{path}: cannot be read as an expert-load trace: {error}") from error
    missing = [name for name in COLUMNS if name not in table.columns]
    if missing:
        raise TraceError(
            f"{path}: an expert-load trace has the columns {', '.join(COLUMNS)}; no {missing[0]}"
        )
    if not len(table):
        raise TraceError(f"{path}: no rows")
    columns: dict[str, Any] = {
        name: np.asarray(pd.to_numeric(table[name], errors="coerce"), np.float64) for name in COLUMNS
    }
    for name, top in (("time_s", np.inf), ("layer", layers), ("expert", experts), ("count", np.inf)):
        values = columns[name]
        whole = name == "time_s" or np.equal(np.mod(values, 1), 0)
        bad = ~(np.isfinite(values) & (values >= 0) & (values < top) & whole)
        if bad.any():
            row = int(np.argmax(bad))
            allowed = f"below {top:g}" if np.isfinite(top) else "0 or more"
            raise TraceError(f"{path}: row {row + 1}: {name} = {table[name].iloc[row]}, allowed is {allowed}")
    times, interval = np.unique(columns["time_s"], return_inverse=True)
    counts = np.zeros((len(times), layers, experts))
    place = (interval, columns["layer"].astype(int), columns["expert"].astype(int))
    np.add.at(counts, place, columns["count"])
    empty = np.argwhere(counts.sum(axis=2) == 0)
    if len(empty):
        number, layer = empty[0]
        raise TraceError(f"{path}: layer {layer} has no picks at time_s = {times[number]:g}")
    return Recording(np.rint(times * NS_PER_S).astype(np.int64), counts)
