"""Least squares with non-negative unknowns, on problems whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest

from simserve.errors import ScenarioError
from simserve.validation.calibration import fit_non_negative

SENSITIVITY = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0], [1.0, 3.0], [1.0, 5.0]])


def test_planted_constants_are_found():
    fit = fit_non_negative(["a", "b"], SENSITIVITY, SENSITIVITY @ np.array([7.0, 0.5]))
    assert fit.values == pytest.approx([7.0, 0.5])
    assert fit.rms == pytest.approx(0, abs=1e-12)


def test_a_constant_that_would_be_negative_stays_at_zero():
    fit = fit_non_negative(["a", "b"], SENSITIVITY, SENSITIVITY @ np.array([7.0, -0.5]))
    assert fit.values[1] == 0
    assert fit.values[0] == pytest.approx(np.mean(SENSITIVITY @ np.array([7.0, -0.5])))


def test_the_interval_is_that_of_a_mean():
    target = np.array([1.0, 2.0, 3.0, 4.0])
    fit = fit_non_negative(["mean"], np.ones((4, 1)), target)
    assert fit.half_width[0] == pytest.approx(1.96 * target.std(ddof=1) / 2)


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        (np.column_stack([np.ones(6), np.ones(6) * 2]), "cannot be told apart"),
        (np.column_stack([np.ones(6), np.zeros(6)]), "changes nothing"),
        (np.eye(2), "at least two per constant"),
    ],
)
def test_what_the_data_cannot_tell_is_refused(columns, complaint):
    with pytest.raises(ScenarioError, match=complaint):
        fit_non_negative(["a", "b"], columns, np.ones(len(columns)))
