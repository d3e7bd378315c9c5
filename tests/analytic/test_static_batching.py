"""Static batching against its closed form: every wait is known exactly."""

from __future__ import annotations

import numpy as np
import pytest

from tests.laws.world import World, make_trace

STEP_NS = 1000


def static(batch_size: int, timeout_ms: float) -> World:
    """Every step takes STEP_NS whatever is in it."""
    params = {"batch_size": batch_size, "timeout_ms": timeout_ms}
    return World("static", params, latency=(STEP_NS, 0, 0, 0), kv_blocks=10_000)


def waits_ns(world: World, interval_ns: int, requests: int, output: int) -> np.ndarray:
    result = world.run(make_trace(np.arange(requests) * interval_ns, [7] * requests, [output] * requests))
    assert (result.last_token_ns - result.first_scheduled_ns == output * STEP_NS).all()
    return result.first_scheduled_ns - result.arrival_ns


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_slow_arrivals_wait_for_the_last_of_their_batch(batch: int) -> None:
    """An arrival every a ns, batches of B that take less than B a: number j waits (B - 1 - j) a."""
    interval_ns, output = 1100, batch
    waits = waits_ns(static(batch, 1000.0), interval_ns, 10 * batch, output)
    assert waits.reshape(10, batch).tolist() == [[(batch - 1 - j) * interval_ns for j in range(batch)]] * 10


@pytest.mark.parametrize("batch", [2, 5])
def test_fast_arrivals_queue_behind_the_batches(batch: int) -> None:
    """Batches that take T > B a start at (B - 1) a + k T; arrival i of batch k = i // B came at i a."""
    interval_ns, output = 300, 2 * batch
    waits = waits_ns(static(batch, 1000.0), interval_ns, 10 * batch, output)
    rows = np.arange(10 * batch)
    start = (batch - 1) * interval_ns + rows // batch * output * STEP_NS
    assert (waits == start - rows * interval_ns).all()


def test_a_timeout_cuts_the_wait_of_the_oldest() -> None:
    """Timeout 2.5 a: each batch is the oldest and the two that come in time, far from its size of 100."""
    interval_ns = 10_000
    waits = waits_ns(static(100, 0.025), interval_ns, 30, output=4)
    assert waits.reshape(10, 3).tolist() == [[25_000, 15_000, 5_000]] * 10


def test_a_batch_takes_as_long_as_its_longest_answer() -> None:
    """Two batches of two: the second starts when the longest answer of the first, 9 steps, has ended."""
    result = static(2, 1000.0).run(make_trace([0] * 4, [5, 7, 3, 3], [9, 2, 1, 4]))
    assert result.first_scheduled_ns.tolist() == [0, 0, 9000, 9000]
    assert result.last_token_ns.tolist() == [9000, 2000, 10_000, 13_000]  # streamed, not held back
