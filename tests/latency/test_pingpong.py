"""The closed form for microbatches between two sides, against the recurrence that it solves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.latency.overlap import LayerTimes, pingpong_ns

NS = st.integers(0, 1000)


def simulated_ns(attention: float, layers: list[LayerTimes], microbatches: int) -> float:
    """Let every microbatch pass every station of every layer, one at a time and in order."""
    free = [0.0] * 4
    ready = [0.0] * microbatches
    for kind in layers:
        for _ in range(kind.times):
            for number in range(microbatches):
                for station, takes in enumerate((attention, kind.out, kind.ffn, kind.back)):
                    free[station] = ready[number] = max(free[station], ready[number]) + takes
    return max(ready)


def closed_ns(attention: float, layers: list[LayerTimes], microbatches: int) -> float:
    return float(pingpong_ns(np.array([float(attention)]), layers, microbatches)[0])


@given(NS, NS, NS, NS, st.integers(1, 12), st.integers(1, 6))
def test_alike_layers_take_what_the_recurrence_takes(a, out, ffn, back, layers: int, batches: int) -> None:
    kinds = [LayerTimes(layers, out, ffn, back)]
    assert closed_ns(a, kinds, batches) == simulated_ns(a, kinds, batches)


@given(NS, st.lists(st.tuples(st.integers(1, 20), NS, NS, NS), min_size=2, max_size=4), st.integers(1, 5))
def test_layers_that_differ_err_by_less_than_a_round_trip_where_they_meet(a, kinds, batches: int) -> None:
    layers = [LayerTimes(*kind) for kind in kinds]
    round_trip = a + max(kind.out + kind.ffn + kind.back for kind in layers)
    error = closed_ns(a, layers, batches) - simulated_ns(a, layers, batches)
    assert abs(error) <= (len(layers) - 1) * round_trip


def test_three_microbatches_fill_three_equal_stations() -> None:
    """Step-3's three stages: attention, FFN and the network (both ways) take equally long."""
    layers = [LayerTimes(60, 50, 100, 50)]
    assert closed_ns(100, layers, 3) == 60 * 300 + 200
    assert closed_ns(100, layers, 2) == 60 * 300 + 100  # two wait for the round trip instead
    assert closed_ns(100, layers, 1) == 60 * 300


def test_two_microbatches_are_enough_where_the_network_is_fast() -> None:
    """MegaScale-Infer: m >= 2 (1 + T_c / T_f) hides the network."""
    layers = [LayerTimes(60, 0, 100, 0)]
    assert closed_ns(100, layers, 2) == pytest.approx(60 * 200 + 100)
    slower = [LayerTimes(60, 40, 100, 40)]
    steady = [closed_ns(100, slower, m) / m / 60 for m in (2, 3)]
    assert steady[0] > 130
    assert steady[1] == pytest.approx(100, rel=0.02)
