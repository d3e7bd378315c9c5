"""Errors of simulated against measured runs: per metric, experiment and stage, and their medians.

The same statistic on both sides, over the requests that the client saw succeed: TTFT and E2E from the
client's send time, TPOT = (E2E - TTFT) / (tokens - 1). The rate is successes per second, from the first
arrival to the last token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from simserve.errors import TraceError
from simserve.latency.step_time import TableLatency
from simserve.metrics import summarize
from simserve.validation.measured_replay import Replay
from simserve.validation.measured_runs import WHOLE, Float64, Int64, MeasuredRun

# Step times of a measured run against predicted ones, binned by the size of the batch.
#
# The log samples about one step in ten. What it gives is the mean cycle since the step logged before: usable
# where nothing changed in between, that is, where both ends have the same decodes and no prompt, and are few
# steps apart. Cycles of idle engines are left out that way too, since a change of the batch follows them.

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


STATISTICS = {
    "ttft": ("mean", "p50", "p90", "p99"),
    "tpot": ("mean", "p50", "p99"),
    "e2e": ("mean", "p50", "p99"),
}
"""What is compared of each latency."""


class Pair(NamedTuple):
    """One metric of a run (seconds, or 1/s)."""

    sim: float
    real: float

    @property
    def error_pct(self) -> float:
        """Simulated over measured, minus one, in percent."""
        return 100 * (self.sim / self.real - 1)


@dataclass(frozen=True)
class Comparison:
    """A run, or one stage of it, simulated and measured."""

    id: str
    stage: int
    requests: int
    metrics: Mapping[str, Pair]


def compare(replay: Replay) -> list[Comparison]:
    """Return the whole run first, then its stages if it has several."""
    stages = np.unique(replay.run.stage).tolist()
    wanted = [WHOLE, *(stages if len(stages) > 1 else [])]
    return [_compare_stage(replay, stage) for stage in wanted]


def median_errors(comparisons: Sequence[Comparison]) -> dict[str, float]:
    """Return the median over whole runs of each metric's absolute error, in percent."""
    whole = [one.metrics for one in comparisons if one.stage == WHOLE]
    names = dict.fromkeys(name for metrics in whole for name in metrics)
    return {
        name: float(np.median([abs(metrics[name].error_pct) for metrics in whole if name in metrics]))
        for name in names
    }


def plain_overload(one: Overload) -> dict[str, Any]:
    """Return an overload as plain values."""
    plain = {"id": one.id, "failed": _plain(one.failed), "ttft_mean_s": _plain(one.ttft_mean_s)}
    return {**plain, "verdict": one.verdict}


def as_json(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """Return the errors as plain values."""
    experiments = [
        {
            "id": one.id,
            "stage": one.stage,
            "metrics": {name: _plain(pair) for name, pair in one.metrics.items()},
        }
        for one in comparisons
    ]
    return {"experiments": experiments, "median_ape": median_errors(comparisons)}


def latency_metrics(
    arrival_ns: Int64, output_tokens: Int64, ttft_s: Float64, e2e_s: Float64
) -> dict[str, float]:
    """Return the compared statistics of the requests given (seconds, and successes per second)."""
    several = output_tokens > 1
    tpot_s = (e2e_s - ttft_s)[several] / (output_tokens[several] - 1)
    columns = {"ttft": ttft_s, "tpot": tpot_s, "e2e": e2e_s}
    metrics = {
        f"{column}_{name}": _statistic(name, columns[column])
        for column, names in STATISTICS.items()
        for name in names
    }
    ends_s = arrival_ns / 1e9 + e2e_s
    metrics["requests_per_s"] = len(e2e_s) / (float(ends_s.max()) - float(arrival_ns.min()) / 1e9)
    return metrics


COLD, WARM = 100, 600
"""Up to COLD every prompt comes for the first time; those up to WARM find it in the prefix cache."""


class Warming(NamedTuple):
    """TTFT of the cold requests over the median of the warm ones."""

    mean: Pair
    """Of the cold requests' mean: includes a real engine's first steps, which take seconds."""
    median: Pair
    """Of the cold requests' median: what prompts that are not in the prefix cache cost."""


def cold_to_warm(replay: Replay) -> Warming | None:
    """Return how much longer the cold requests take; None if the run is shorter."""
    run = replay.run
    if len(run) < WARM or run.failed[:WARM].any() or np.isnan(replay.ttft_s[:WARM]).any():
        return None
    both = (replay.ttft_s, run.ttft_s)
    warm = [float(np.median(one[COLD:WARM])) for one in both]
    mean, median = (
        Pair(*(float(of(one[:COLD])) / base for one, base in zip(both, warm, strict=True)))
        for of in (np.mean, np.median)
    )
    return Warming(mean, median)


def plain_warming(warming: Warming) -> dict[str, Any]:
    """Return a warming as plain values."""
    return {**_plain(warming.mean), "median": _plain(warming.median)}


class Overload(NamedTuple):
    """An overloaded run: requests that clients gave up on, and what the simulation says of the run."""

    id: str
    failed: Pair
    ttft_mean_s: Pair
    """Over those that succeeded on each side."""
    verdict: str


def overload(replay: Replay) -> Overload:
    """Compare a run whose clients gave up: counts of failures, not latencies one by one."""
    run = replay.run
    stability = summarize(replay.result).stability
    unstable = replay.failed > 0 or stability.verdict == "unstable"
    return Overload(
        run.id,
        Pair(float(replay.failed), float(run.failed.sum())),
        Pair(float(np.nanmean(replay.ttft_s)), float(np.nanmean(run.ttft_s))),
        "unstable" if unstable else stability.verdict,
    )


def _compare_stage(replay: Replay, stage: int) -> Comparison:
    run = replay.run
    rows = ~run.failed & ((run.stage == stage) | (stage == WHOLE)) & ~np.isnan(replay.ttft_s)
    sim = _metrics_of(replay, rows, replay.ttft_s, replay.e2e_s)
    real = _metrics_of(replay, rows, run.ttft_s, run.e2e_s)
    return Comparison(run.id, stage, int(rows.sum()), {name: Pair(sim[name], real[name]) for name in sim})


def _metrics_of(replay: Replay, rows: NDArray[np.bool_], ttft_s: Float64, e2e_s: Float64) -> dict[str, float]:
    run = replay.run
    return latency_metrics(run.arrival_ns[rows], run.output_tokens[rows], ttft_s[rows], e2e_s[rows])


def _statistic(name: str, values: Float64) -> float:
    return float(np.mean(values)) if name == "mean" else float(np.percentile(values, float(name[1:])))


def _plain(pair: Pair) -> dict[str, float]:
    return {"sim": pair.sim, "real": pair.real, "err_pct": pair.error_pct}
