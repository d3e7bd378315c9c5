"""Intervals against scipy, and their coverage on dependent data."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special, stats

from simserve.metrics.distribution import (
    Batch,
    beta_cdf,
    beta_quantile,
    mean_interval,
    share_interval,
    t_quantile,
)


@pytest.mark.parametrize(("a", "b"), [(0.5, 0.5), (1, 3), (20, 0.5), (300, 4.7), (5000, 60)])
@pytest.mark.parametrize("x", [1e-9, 0.2, 0.5, 0.97, 0.999999])
def test_the_incomplete_beta_function_is_scipys(a: float, b: float, x: float) -> None:
    assert beta_cdf(x, a, b) == pytest.approx(special.betainc(a, b, x), rel=1e-9, abs=1e-14)


@pytest.mark.parametrize("p", [0.005, 0.05, 0.5, 0.99])
@pytest.mark.parametrize(("a", "b"), [(0.5, 0.5), (1, 3), (300, 4.7)])
def test_quantiles_of_beta_are_scipys(p: float, a: float, b: float) -> None:
    assert beta_quantile(p, a, b) == pytest.approx(stats.beta.ppf(p, a, b), rel=1e-7, abs=1e-12)


@pytest.mark.parametrize("freedom", [1, 2, 4, 19, 400])
@pytest.mark.parametrize("p", [0.9, 0.975, 0.9995])
def test_quantiles_of_students_t_are_scipys(p: float, freedom: int) -> None:
    assert t_quantile(p, freedom) == pytest.approx(stats.t.ppf(p, freedom), rel=1e-6)


def test_the_interval_of_a_mean_is_students() -> None:
    values = [1.0, 2.5, 3.0, 7.0]
    found = mean_interval(values, 0.95)
    low, high = stats.t.interval(0.95, 3, loc=np.mean(values), scale=stats.sem(values))
    assert (found.low, found.high) == pytest.approx((low, high))


def test_one_run_gives_no_interval_of_a_mean() -> None:
    assert mean_interval([4.0], 0.95) == (4.0, None, None)


def test_independent_requests_have_clopper_and_pearsons_interval() -> None:
    """29 of 30 good: as scipy's exact binomial test says."""
    found = share_interval([[Batch(30, 29)]], 0.9)
    exact = stats.binomtest(29, 30).proportion_ci(0.9, "exact")
    assert found is not None
    assert (found.low, found.high) == pytest.approx((exact.low, exact.high))


def test_all_good_shows_no_more_than_their_number_allows() -> None:
    """The one-sided bound of n good requests is alpha ** (1 / n)."""
    found = share_interval([[Batch(299, 299)]], 0.9)
    assert found is not None
    assert found.low == pytest.approx(0.05 ** (1 / 299))


@pytest.mark.parametrize("spell", [1, 10])
def test_intervals_of_dependent_requests_hold_the_truth(spell: int) -> None:
    """Requests that are good or bad in spells of geometric length: 95 % intervals over 400 runs."""
    rng = np.random.default_rng(5)
    share, n, inside = 0.9, 2000, 0
    for _ in range(400):
        states = rng.random(n) < share
        new = rng.random(n) < 1 / spell
        new[0] = True
        good = states[np.maximum.accumulate(np.where(new, np.arange(n), 0))]
        run = [Batch(len(part), int(part.sum())) for part in np.array_split(good, 20)]
        found = share_interval([run], 0.95)
        assert found is not None
        assert found.low is not None
        assert found.high is not None
        inside += found.low <= share <= found.high
    assert inside >= 370  # 380 expected, standard deviation 4.4
