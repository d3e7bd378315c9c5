"""Binning of intervals: sums are kept, gaps are empty, overlaps are told apart."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from results_by_hand import floats, ints

from simserve.metrics.columns import held, totals

EDGES = floats([0, 10, 20, 30])


def test_an_amount_is_spread_evenly_over_its_interval():
    assert totals(ints([5]), ints([25]), floats([40]), EDGES).tolist() == pytest.approx([10, 20, 10])


def test_overlapping_amounts_add_up():
    assert totals(ints([0, 0]), ints([10, 20]), floats([1, 2]), EDGES).tolist() == pytest.approx([2, 1, 0])


def test_a_level_holds_over_its_interval_and_is_zero_in_gaps():
    found = held(ints([0, 25]), ints([10, 30]), floats([4, 2]), EDGES)
    assert found.tolist() == pytest.approx([40, 0, 10])


def test_overlapping_rows_of_one_thing_hold_their_mean_level():
    assert held(ints([0, 0]), ints([10, 10]), floats([4, 6]), EDGES).tolist() == pytest.approx([50, 0, 0])


def test_nothing_is_zero():
    nothing = ints([])
    assert totals(nothing, nothing, floats([]), EDGES).tolist() == [0, 0, 0]
    assert held(nothing, nothing, floats([]), EDGES).tolist() == [0, 0, 0]


rows = st.lists(
    st.tuples(st.integers(0, 999), st.integers(1, 300), st.integers(0, 50)), min_size=1, max_size=30
)


@given(rows)
def test_totals_keep_the_sum_and_match_a_count_per_nanosecond(found):
    start, length, amount = (ints(column) for column in zip(*found, strict=True))
    edges = np.linspace(0, 1300, 14)
    binned = totals(start, start + length, amount.astype(float), edges)
    plain = np.zeros(1300)
    for at, duration, much in found:
        plain[at : at + duration] += much / duration
    assert binned.sum() == pytest.approx(amount.sum(), abs=1e-6)
    assert binned == pytest.approx(plain.reshape(13, 100).sum(axis=1), abs=1e-6)
