"""The roofline-ratio grid: exact on its points, tagged, never senseless outside them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.latency.tables.grid import EXTRAPOLATED, INTERPOLATED, MEASURED, Grid

X = np.array([1.0, 2, 4, 8, 16, 1, 2, 4, 8])
Y = np.array([10.0, 10, 10, 10, 10, 40, 40, 40, 40])
US = np.array([5.0, 5.5, 6, 9, 20, 5, 6, 12, 30])


def work(x, y):
    return 1.0 + x * y / 16


def grid() -> Grid:
    """Two lines; the point (16, 40) was not measured."""
    return Grid([Y, X], US, lambda y, x: work(x, y))


def test_measured_points_return_the_measured_time():
    us, tags = grid().tagged(Y, X)
    assert us == pytest.approx(US, rel=1e-12)
    assert (tags == MEASURED).all()


def test_between_points_the_efficiency_is_the_geometric_mean():
    """Launch 1 us (the shortest time) + work: rooflines 2, 3, 5; efficiencies 2/1, 5/10; their mean is 1."""
    one = Grid([np.array([1.0, 4])], np.array([1.0, 10]), lambda x: x)
    assert one.at(2.0) == pytest.approx(3.0)


def test_tags_say_interpolated_between_points_and_extrapolated_in_holes_and_outside():
    _, tags = grid().tagged(np.array([10.0, 10, 40, 40, 10, 80]), np.array([3.0, 17, 4, 12, 0.5, 2]))
    assert tags.tolist() == [
        INTERPOLATED, EXTRAPOLATED, MEASURED, EXTRAPOLATED, EXTRAPOLATED, EXTRAPOLATED
    ]  # fmt: skip


def test_above_the_grid_time_grows_as_the_roofline_and_below_it_stays():
    one = Grid([X[:5]], US[:5], lambda x: x)
    assert one.at(32.0) == pytest.approx(20.0 * (5 + 32) / (5 + 16))
    assert one.at(0.25) == pytest.approx(5.0)


def test_a_hole_between_points_is_bridged():
    """Every measured time is 1 + x, launch plus work, so that the bridged one must be too."""
    y, x = np.array([1.0, 1, 1, 1, 2, 2]), np.array([1.0, 2, 4, 8, 1, 8])
    holed = Grid([y, x], 2 + x - 1, lambda y, x: x - 1)
    assert holed.at(2.0, 4.0) == pytest.approx(5.0)
    assert holed.tagged(2.0, 4.0)[1] == EXTRAPOLATED


@given(st.floats(1e-3, 1e9), st.floats(1e-3, 1e9))
def test_no_query_is_negative_infinite_or_nan_and_both_paths_agree(y, x):
    us = float(grid().at(y, x))
    assert us > 0
    assert np.isfinite(us)
    assert grid().at_one(y, x) == pytest.approx(us, rel=1e-9)


def test_fixing_an_axis_changes_nothing():
    assert grid().fixed(20.0).at(np.array([3.0, 9.0])) == pytest.approx(grid().at(20.0, np.array([3.0, 9.0])))
    assert grid().fixed(10.0).tagged(4.0)[1] == MEASURED
    assert grid().fixed(20.0).tagged(4.0)[1] == INTERPOLATED
