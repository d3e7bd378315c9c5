"""Step times of a measured run against predicted ones, binned by the size of the batch.

The log samples about one step in ten. What it gives is the mean cycle since the step logged before: usable
where nothing changed in between, that is, where both ends have the same decodes and no prompt, and are few
steps apart. Cycles of idle engines are left out that way too, since a change of the batch follows them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from simserve.errors import TraceError
from simserve.latency.table_latency import TableLatency
from simserve.validate.measured_runs import MeasuredRun

MOST_STEPS = 20
"""Longest distance between two logged steps that are taken to be neighbours."""
BIN = 16
"""Sequences per bin."""
_COLUMNS = (
    "steps_since_prev",
    "mean_cycle_since_prev_us",
    "num_prefill_reqs",
    "num_decode_reqs",
    "kv_usage",
    "kv_blocks_total",
)


@dataclass(frozen=True)
class StepBin:
    """Decode steps of `low` to `low + BIN - 1` sequences."""

    low: int
    steps: int
    """Logged intervals in the bin."""
    sim_ms: float
    """Mean of the predictions, each at its own batch and context."""
    real_ms: float

    @property
    def error_pct(self) -> float:
        """Predicted over measured, minus one, in percent."""
        return 100 * (self.sim_ms / self.real_ms - 1)


def step_intervals(run: MeasuredRun) -> pd.DataFrame:
    """Return the usable intervals: `decodes`, `context` (mean tokens) and `cycle_us`."""
    if run.steps_file is None:
        raise TraceError(f"{run.id}: no log of its steps")
    log = pd.read_csv(run.steps_file)
    missing = [name for name in _COLUMNS if name not in log.columns]
    if missing:
        raise TraceError(f"{run.steps_file}: lacks the column {missing[0]!r}")
    decodes, prompts = log["num_decode_reqs"], log["num_prefill_reqs"]
    same = (decodes == decodes.shift()) & (decodes > 0) & (prompts == 0) & (prompts.shift() == 0)
    near = log["steps_since_prev"] <= MOST_STEPS
    kept = log[same & near]
    block_size = run.number("block_size") or 16
    held = kept["kv_usage"] * kept["kv_blocks_total"] * block_size
    return pd.DataFrame(
        {
            "decodes": kept["num_decode_reqs"],
            "context": np.maximum(held / kept["num_decode_reqs"], _usual_context(run)),
            "cycle_us": kept["mean_cycle_since_prev_us"],
        }
    )


def _usual_context(run: MeasuredRun) -> float:
    """Return the mean context of a request that decodes: its prompt and half of its answer.

    KV in use is less where prompts share blocks, and prompts of these runs do.
    """
    return float(run.prompt_tokens.mean() + run.output_tokens.mean() / 2)


def binned_steps(run: MeasuredRun, latency: TableLatency) -> list[StepBin]:
    """Return predicted and measured decode steps, smallest batches first.

    The context is the KV in use over the sequences (half a block too long), but at least a prompt and half an
    answer, since shared blocks are counted once there.
    """
    intervals = step_intervals(run)
    predicted = [
        latency.quietly_step_ns(int(n), round(n * context), ()) / 1e6
        for n, context in zip(intervals["decodes"], intervals["context"], strict=True)
    ]
    low = (intervals["decodes"].to_numpy() // BIN) * BIN
    cycle_ms = intervals["cycle_us"].to_numpy() / 1e3
    bins = []
    for value in np.unique(low).tolist():
        rows = low == value
        sim, real = np.array(predicted)[rows], cycle_ms[rows]
        bins.append(StepBin(value, int(rows.sum()), float(sim.mean()), float(np.median(real))))
    return bins
