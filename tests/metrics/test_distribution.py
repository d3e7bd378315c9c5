"""Percentiles against numpy on the plain list of values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from results_by_hand import MS, gaps

from simserve.metrics.distribution import Distribution, of_gaps_ms, of_values, share_within


def test_percentiles_of_five_values_by_hand():
    found = of_values(np.array([1.0, 2.0, 3.0, 4.0, 10.0]))
    assert (found.count, found.mean, found.p50, found.max) == (5, 4.0, 3.0, 10.0)
    assert found.p90 == pytest.approx(4 + 0.6 * 6)
    assert found.p95 == pytest.approx(4 + 0.8 * 6)
    assert found.p99 == pytest.approx(4 + 0.96 * 6)


def test_absent_values_do_not_count():
    assert of_values(np.array([np.nan, 7.0, np.nan])).count == 1
    assert of_values(np.array([np.nan])) == Distribution()


@given(
    st.lists(
        st.tuples(st.integers(1, 10**12), st.integers(1, 50)),
        min_size=1,
        max_size=40,
        unique_by=lambda p: p[0],
    )
)
def test_gap_histogram_equals_the_list_of_gaps(pairs):
    found = of_gaps_ms(gaps(pairs))
    plain = np.repeat([g for g, _ in pairs], [c for _, c in pairs]) / MS
    assert found.count == len(plain)
    assert found.mean == pytest.approx(plain.mean())
    assert found.max == pytest.approx(plain.max())
    for percent in (50, 90, 95, 99):
        assert getattr(found, f"p{percent}") == pytest.approx(np.percentile(plain, percent), rel=1e-9)


def test_no_gaps_is_no_data():
    assert of_gaps_ms(gaps([])) == Distribution()
    assert share_within(gaps([]), 5) is None


def test_share_of_gaps_within_a_limit():
    assert share_within(gaps([(10 * MS, 3), (20 * MS, 1)]), 10) == 0.75


def test_real_bins_keep_percentiles_within_their_width():
    """Gaps in the engine's geometric bins: within 0.5 % of the exact percentiles."""
    exact = np.random.default_rng(3).lognormal(17, 0.7, 20_000)
    ratio = np.log(1.004)
    bins, counts = np.unique(np.floor(np.log(exact) / ratio), return_counts=True)
    middle = np.exp((bins + 0.5) * ratio)
    found = of_gaps_ms(gaps([(float(m), int(c)) for m, c in zip(middle, counts, strict=True)]))
    for percent in (50, 90, 95, 99):
        assert getattr(found, f"p{percent}") == pytest.approx(np.percentile(exact, percent) / MS, rel=0.005)
