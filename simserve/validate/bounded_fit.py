"""Least squares with non-negative unknowns and confidence intervals; refuses what data do not identify.

Few unknowns: every subset of them is tried free with the rest at zero; the best feasible one is the optimum.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np

from simserve.errors import ScenarioError
from simserve.validate.measured_runs import Float64

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
