"""The histogram of token gaps: exact in sum and count, fine in its bins."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from simserve.sim.recorder import GapRecorder

gaps = st.integers(1, 10**15)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    single=st.lists(st.tuples(gaps, st.integers(1, 1000)), max_size=30),
    many=st.lists(st.tuples(st.integers(1, 10**10), st.integers(0, 1000)), max_size=30),
)
def test_sum_and_count_are_exact(single: list[tuple[int, int]], many: list[tuple[int, int]]) -> None:
    recorder = GapRecorder()
    for gap_ns, weight in single:
        recorder.add(gap_ns, weight, weight // 2)
    if many:
        values, weights = np.array(many, dtype=np.int64).T
        recorder.add_many(values, weights, weights // 2)
    result, steady = recorder.results()
    assert int(steady.count.sum()) == sum(weight // 2 for _, weight in single + many)
    assert result.sum_ns == sum(gap_ns * weight for gap_ns, weight in single + many)
    assert int(result.count.sum()) == sum(weight for _, weight in single + many)
    assert (result.count > 0).all()
    assert (np.diff(result.gap_ns) > 0).all()


@settings(max_examples=200, deadline=None, derandomize=True)
@given(gap_ns=gaps)
def test_a_gap_is_found_within_a_quarter_of_a_percent(gap_ns: int) -> None:
    """The bin's middle stands for all of it: bins narrower than 0.5 % put it within 0.25 %."""
    recorder = GapRecorder()
    recorder.add(gap_ns, 3, 3)
    for found in recorder.results():
        assert abs(found.gap_ns[0] / gap_ns - 1) < 0.0025


def test_bins_are_narrower_than_half_a_percent_all_over() -> None:
    """Of gaps 0.5 % apart no two share a bin."""
    values = np.unique(np.round(1e4 * 1.005 ** np.arange(3000)).astype(np.int64))
    recorder = GapRecorder()
    recorder.add_many(values, *np.ones((2, len(values)), dtype=np.int64))
    assert len(recorder.results()[0].count) == len(values)


def test_a_hundred_thousand_gaps_take_the_memory_of_their_bins() -> None:
    recorder = GapRecorder()
    expected: Counter[int] = Counter()
    for number in range(100_000):
        recorder.add(1000 + number % 7, 2, 0)
        expected[1000 + number % 7] += 2
    result, _ = recorder.results()
    assert result.sum_ns == sum(gap_ns * count for gap_ns, count in expected.items())
    assert len(result.count) <= 7
