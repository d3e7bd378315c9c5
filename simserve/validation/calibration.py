"""Fit named engine overhead constants to measured runs: sensitivities by simulation, then least squares.

Observed are mean TTFT and mean TPOT of each stage of each run, as relative errors. Each constant is raised by
a little, the runs are simulated again, and the change gives its column. Kernel times are never touched: what
is left when the runs disagree about a constant belongs to a mechanism that it does not describe.

Something is always held out: each run in turn, or of a single run each stage (its halves if it has but one).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from simserve.engines.overheads import overhead_named, overhead_yaml
from simserve.errors import ScenarioError, nearest
from simserve.validation.measured import compare
from simserve.validation.measured_replay import replay
from simserve.validation.measured_runs import WHOLE, Float64, MeasuredRun

# Least squares with non-negative unknowns and confidence intervals; refuses what data do not identify.
#
# Few unknowns: every subset of them is tried free with the rest at zero; the best feasible one is the
# optimum.

MOST_CONDITION = 30.0
"""Largest condition number of the scaled sensitivities: beyond it two constants explain the same thing."""
MOST_UNKNOWNS = 4


@dataclass(frozen=True)
class Fit:
    """Fitted unknowns and how well they are known."""

    values: Float64
    half_width: Float64
    """Half of the 95 % confidence interval of each (0 where it lies at its bound)."""
    residual: Float64
    """What is left of each observation."""

    @property
    def rms(self) -> float:
        """Root mean square of the residual."""
        return float(np.sqrt(np.mean(self.residual**2)))


def fit_non_negative(names: list[str], sensitivity: Float64, target: Float64) -> Fit:
    """Return x >= 0 that minimises |sensitivity x - target|; sensitivity is float64[observations, unknowns].

    Raises `ScenarioError` if there are too few observations, or the columns are nearly dependent.
    """
    check_identified(names, sensitivity)
    count = len(names)
    best, best_error = np.zeros(count), float(target @ target)
    for size in range(1, count + 1):
        for free in combinations(range(count), size):
            columns = sensitivity[:, free]
            values = np.linalg.lstsq(columns, target, rcond=None)[0]
            error = float(np.sum((columns @ values - target) ** 2))
            if (values >= 0).all() and error < best_error:
                best, best_error = np.zeros(count), error
                best[list(free)] = values
    residual = target - sensitivity @ best
    return Fit(best, _half_widths(sensitivity, best > 0, residual), residual)


def check_identified(names: list[str], sensitivity: Float64) -> None:
    """Refuse to fit what the observations cannot tell apart."""
    observations, count = sensitivity.shape
    if count > MOST_UNKNOWNS or observations < 2 * count:
        raise ScenarioError(
            f"{count} constants ({', '.join(names)}) from {observations} observations: at least two per "
            f"constant are needed, and at most {MOST_UNKNOWNS} constants"
        )
    lengths = np.linalg.norm(sensitivity, axis=0)
    idle = [name for name, length in zip(names, lengths, strict=True) if length < 1e-9]
    if idle:
        raise ScenarioError(f"{idle[0]} changes nothing in these runs: they cannot tell its value")
    condition = float(np.linalg.cond(sensitivity / lengths))
    if condition > MOST_CONDITION:
        raise ScenarioError(
            f"{', '.join(names)} cannot be told apart by these runs (condition number {condition:.0f}, "
            f"allowed {MOST_CONDITION:.0f}): fit fewer, or add runs that differ more"
        )


def _half_widths(sensitivity: Float64, free: np.ndarray, residual: Float64) -> Float64:
    """Return 1.96 standard errors of the free unknowns; residuals are taken as independent."""
    widths = np.zeros(len(free))
    columns = sensitivity[:, free]
    degrees = len(residual) - columns.shape[1]
    if columns.shape[1] and degrees > 0:
        variance = float(residual @ residual) / degrees
        widths[free] = 1.96 * np.sqrt(variance * np.diag(np.linalg.inv(columns.T @ columns)))
    return widths


PROBES_US = {
    "client_us": 1000.0,
    "gap_us": 100.0,
    "saved_us": 100.0,
    "step_us": 100.0,
    "sequence_us": 10.0,
    "request_us": 100.0,
}
"""Constants that can be fitted, and how far each is moved to see what it does (microseconds)."""
OBSERVED = ("ttft_mean", "tpot_mean")
_ROUNDS = 2
"""Gauss-Newton steps; the model is nearly linear in the constants."""


@dataclass(frozen=True)
class Calibration:
    """Fitted constants of an engine."""

    base: str
    values: dict[str, float]
    """What is added to the base's constants, microseconds."""
    half_width: dict[str, float]
    runs: tuple[str, ...]
    observations: tuple[str, ...]
    """Names of the observations: run, stage, metric."""
    before: Float64
    """Relative error of each observation without the fit, simulated over measured minus one."""
    after: Float64
    held_out: dict[str, float]
    """By run (of a single run, by stage): largest absolute relative error of its observations when it is left
    out of the fit."""
    alone: dict[str, dict[str, float]]
    """By run: the constants that it alone asks for."""

    def yaml(self) -> str:
        """Return the file that a scenario cites."""
        source = f"fitted to {', '.join(self.runs)} (see fit)"
        added = self.values
        widths = {name: f"{value:.0f} +- {self.half_width[name]:.0f} us" for name, value in added.items()}
        fit: dict[str, Any] = {
            "runs": list(self.runs),
            "observed": "mean TTFT and mean TPOT of each stage, relative errors",
            "interval_95": widths,
            "rms_error_pct_before": _pct(self.before),
            "rms_error_pct_after": _pct(self.after),
            "held_out_worst_error_pct": {key: round(100 * value, 1) for key, value in self.held_out.items()},
            "each_run_alone_us": {
                key: {name: round(us) for name, us in values.items()} for key, values in self.alone.items()
            },
        }
        values = {name: round(value, 1) for name, value in _absolute(self.base, self.values).items()}
        return overhead_yaml(self.base, values, dict.fromkeys(self.values, source), fit)


def calibrate(
    runs: Sequence[MeasuredRun], names: Sequence[str], base: str = "vllm", profiles: Sequence[str] = ()
) -> Calibration:
    """Fit the constants `names` to the runs; raises `ScenarioError` if the runs cannot tell them.

    `profiles` are folders of kernel tables that are looked into first.
    """
    unknown = [name for name in names if name not in PROBES_US]
    if unknown:
        hint = nearest(unknown[0], PROBES_US)
        raise ScenarioError(f"unknown constant {unknown[0]!r}{hint}; can be fitted: {', '.join(PROBES_US)}")
    overhead_named(base)
    order = list(names)
    runs = [_staged(run) for run in runs]
    start = dict.fromkeys(order, 0.0)
    before = {run.id: _errors(run, base, start, profiles) for run in runs}
    parts = {run.id: _sensitivity(run, base, start, before[run.id], profiles) for run in runs}
    values, fit = _solve(order, [run.id for run in runs], before, parts)
    for _ in range(_ROUNDS - 1):
        here = {run.id: _errors(run, base, values, profiles) for run in runs}
        shift = _stack([run.id for run in runs], parts) @ np.array(list(values.values()))
        target = shift - np.concatenate([list(errors.values()) for errors in here.values()])
        fit = fit_non_negative(order, _stack([run.id for run in runs], parts), target)
        values = dict(zip(order, fit.values.tolist(), strict=True))
    after = {run.id: _errors(run, base, values, profiles) for run in runs}
    ids = [run.id for run in runs]
    return Calibration(
        base=base,
        values=values,
        half_width=dict(zip(order, fit.half_width.tolist(), strict=True)),
        runs=tuple(ids),
        observations=tuple(f"{key} {name}" for key in ids for name in before[key]),
        before=np.array([error for key in ids for error in before[key].values()]),
        after=np.array([error for key in ids for error in after[key].values()]),
        held_out=_held_out(order, ids, before, parts),
        alone={key: values for key in ids if (values := _alone(order, key, before, parts))},
    )


def _staged(run: MeasuredRun) -> MeasuredRun:
    """Return the run with at least two stages: a run of one is cut in halves, so that one can be held out."""
    if len(set(run.stage.tolist())) > 1:
        return run
    return replace(run, stage=(np.arange(len(run)) * 2 // len(run)).astype(np.int64))


def _errors(
    run: MeasuredRun, base: str, values: Mapping[str, float], profiles: Sequence[str]
) -> dict[str, float]:
    """Return the relative error of each observation of a run with these constants."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "overhead.yaml"
        path.write_text(overhead_yaml(base, _absolute(base, values), {}, {}), encoding="utf-8")
        compared = compare(replay(run, str(path), profiles))
    stages = [one for one in compared if one.stage != WHOLE] or compared
    return {
        f"stage {one.stage} {name}": one.metrics[name].error_pct / 100 for one in stages for name in OBSERVED
    }


def _absolute(base: str, added_us: Mapping[str, float]) -> dict[str, float]:
    """Return the constants themselves: the base's and what the fit adds to them (never negative)."""
    constants = overhead_named(base)
    return {name: getattr(constants, name) + us for name, us in added_us.items()}


def _sensitivity(
    run: MeasuredRun,
    base: str,
    start: Mapping[str, float],
    errors: Mapping[str, float],
    profiles: Sequence[str],
) -> Float64:
    """Return each observation's change per microsecond, float64[observations, constants]."""
    columns = []
    for name in start:
        moved = _errors(run, base, {**start, name: start[name] + PROBES_US[name]}, profiles)
        columns.append([(moved[key] - errors[key]) / PROBES_US[name] for key in errors])
    return np.array(columns).T


def _solve(
    names: list[str], ids: list[str], errors: Mapping[str, Mapping[str, float]], parts: Mapping[str, Float64]
) -> tuple[dict[str, float], Fit]:
    target = -np.array([error for key in ids for error in errors[key].values()])
    fit = fit_non_negative(names, _stack(ids, parts), target)
    return dict(zip(names, fit.values.tolist(), strict=True)), fit


def _held_out(
    names: list[str], ids: list[str], errors: Mapping[str, Mapping[str, float]], parts: Mapping[str, Float64]
) -> dict[str, float]:
    """Return the worst error of each run under the constants of the others (linear prediction).

    Of a single run: of each stage under the constants of its other stages.
    """
    if len(ids) == 1:
        errors, parts = _by_stage(errors[ids[0]], parts[ids[0]])
        ids = list(errors)
    worst = {}
    for key in ids:
        others = [other for other in ids if other != key]
        values, _ = _solve(names, others, errors, parts)
        left = np.array(list(errors[key].values())) + parts[key] @ np.array(list(values.values()))
        worst[key] = float(np.abs(left).max())
    return worst


def _by_stage(
    errors: Mapping[str, float], part: Float64
) -> tuple[dict[str, dict[str, float]], dict[str, Float64]]:
    """Return a run's errors and sensitivities, by stage."""
    stages: dict[str, list[int]] = {}
    keys = list(errors)
    for row, key in enumerate(keys):
        stages.setdefault(key.rsplit(" ", 1)[0], []).append(row)
    return (
        {stage: {keys[row]: errors[keys[row]] for row in rows} for stage, rows in stages.items()},
        {stage: part[rows] for stage, rows in stages.items()},
    )


def _alone(
    names: list[str], key: str, errors: Mapping[str, Mapping[str, float]], parts: Mapping[str, Float64]
) -> dict[str, float]:
    """Return the constants by one run, or nothing if it alone cannot tell them."""
    try:
        return _solve(names, [key], errors, parts)[0]
    except ScenarioError:
        return {}


def _stack(ids: list[str], parts: Mapping[str, Float64]) -> Float64:
    return np.concatenate([parts[key] for key in ids])


def _pct(errors: Float64) -> float:
    return round(100 * float(np.sqrt(np.mean(errors**2))), 2)
