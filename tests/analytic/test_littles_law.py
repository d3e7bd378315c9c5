"""Little's law: time in the system, added up over requests, is the number in the system over time."""

from __future__ import annotations

import numpy as np
import pytest

from simserve.core import Result
from tests.laws.settings import every_world
from tests.laws.world import World, make_trace


def request_ns(result: Result) -> tuple[int, int]:
    """Ns in queue (first wait and later ones) and in total, over all requests."""
    total = int((result.last_token_ns - result.arrival_ns).sum())
    queued = int((result.first_scheduled_ns - result.arrival_ns + result.requeued_ns).sum())
    return queued, total


def timeline_ns(result: Result) -> tuple[float, float]:
    """The same from the timelines: waiting over time, and waiting + running over time."""
    queued = running = 0.0
    for replica in result.replicas:
        line = replica.timeline
        duration = line.end_ns - line.start_ns
        queued += float((line.waiting * duration).sum())
        running += float((line.running * duration).sum())
    return queued, queued + running


def busy_world(world: World, seed: int, **options) -> Result:
    rng = np.random.default_rng(seed)
    rows = 300
    trace = make_trace(
        np.cumsum(rng.integers(0, 3000, rows)), rng.integers(1, 20, rows), rng.integers(1, 20, rows)
    )
    return world.run(trace, **options)


@every_world
@pytest.mark.parametrize("fast_forward", [True, False])
def test_number_in_system_is_time_in_system(world: World, fast_forward: bool) -> None:
    if world.lags:
        pytest.skip("the scheduler counts a request as running until it hears of its end, a step late")
    result = busy_world(world.but(replicas=2, router="random"), seed=5, fast_forward=fast_forward)
    if world.policy == "static":
        by_requests, _ = request_ns(result)  # slots are held until the longest answer of the batch has ended
        assert timeline_ns(result)[0] == pytest.approx(by_requests, rel=1e-9)
    else:
        assert timeline_ns(result) == pytest.approx(request_ns(result), rel=1e-9)
