"""The timing method against known distributions and a call of known length."""

from __future__ import annotations

import time

import numpy as np
import torch

from simserve.profiler.device import open_device
from simserve.profiler.timing import MAX_SAMPLES, measure, median_error


def test_error_of_the_median_matches_its_textbook_value() -> None:
    rng = np.random.default_rng(0)
    medians, claimed = [], []
    for _ in range(400):
        samples = rng.normal(100, 5, 100)
        medians.append(np.median(samples))
        claimed.append(median_error(samples))
    # sqrt(pi / 2) * 5 / sqrt(100) / 100 = 0.627 %
    assert abs(float(np.mean(claimed)) / 0.00627 - 1) < 0.1
    assert abs(float(np.std(medians)) / 100 / 0.00627 - 1) < 0.15


def busy(_: int) -> None:
    """Compute for four milliseconds of CPU time, then let another program have the core for as long."""
    end = time.thread_time() + 0.004
    while time.thread_time() < end:
        pass
    time.sleep(0.004)


def test_one_thread_is_timed_by_what_it_computes() -> None:
    timing = measure(busy, 1, open_device("cpu"), 0.2)
    assert 4000 <= timing.p10_us <= timing.median_us < 5000
    assert timing.method == "thread"
    assert 3 <= timing.n_samples <= MAX_SAMPLES


def test_several_threads_are_timed_by_the_wall() -> None:
    torch.set_num_threads(2)
    timing = measure(busy, 1, open_device("cpu"), 0.2)
    assert timing.p10_us >= 8000
    assert timing.method == "wall"


def test_every_copy_of_the_inputs_is_used_in_turn() -> None:
    used: list[int] = []
    measure(used.append, 5, open_device("cpu"), 0.02)
    timed = used[3:]
    assert timed == [index % 5 for index in range(len(timed))]
