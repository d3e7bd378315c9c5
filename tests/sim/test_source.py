"""Where requests come from: recorded times, clients that wait, sessions with think times."""

from __future__ import annotations

import numpy as np

from simserve.core import Status
from tests.laws.world import World, make_trace

WORLD = World("orca", latency=(1000, 0, 0, 0), kv_blocks=200)
"""Every step takes 1,000 ns: n tokens take n steps (the first comes out of the prompt's)."""


def test_open_loop_sends_at_the_recorded_times() -> None:
    result = WORLD.run(make_trace([0, 700, 700, 2500], [5] * 4, [2] * 4))
    assert result.arrival_ns.tolist() == [0, 700, 700, 2500]
    assert result.arrival_order.tolist() == [0, 1, 2, 3]


def test_closed_loop_replaces_the_recorded_times() -> None:
    """Two clients: rows 0 and 1 at once, each later row when an earlier one has ended."""
    result = WORLD.run(make_trace([0, 9, 99, 999], [5] * 4, [2, 3, 2, 2]), closed_loop=2)
    assert result.arrival_ns.tolist() == [0, 0, 2000, 3000]
    assert result.last_token_ns.tolist() == [2000, 3000, 4000, 5000]


def test_more_clients_than_requests() -> None:
    result = WORLD.run(make_trace([0, 9], [5, 5], [1, 1]), closed_loop=10)
    assert result.arrival_ns.tolist() == [0, 0]


def test_a_turn_follows_its_answer_after_the_think_time() -> None:
    """Sessions 0 = rows 0, 2, 3 and 1 = row 1; the recorded times of later turns do not count."""
    trace = make_trace(
        [0, 100, 200, 300], [5] * 4, [2, 1, 1, 2], session=[0, 1, 0, 0], think_ns=[0, 0, 4000, 0]
    )
    result = WORLD.run(trace)
    assert result.arrival_ns.tolist() == [0, 100, 6000, 7000]
    assert result.last_token_ns.tolist() == [2000, 2000, 7000, 9000]


def test_a_closed_loop_of_sessions_is_a_loop_of_users() -> None:
    """One client: it plays session 0 to its end, then session 1."""
    trace = make_trace([0, 0, 0], [5] * 3, [1] * 3, session=[0, 1, 0], think_ns=[0, 0, 500])
    assert WORLD.run(trace, closed_loop=1).arrival_ns.tolist() == [0, 2500, 1500]


def test_thousands_of_refusals_in_a_row() -> None:
    """Each sends the next at once; the one that fits comes last."""
    rows = 5000
    prompts = np.full(rows, WORLD.max_model_len)
    prompts[-1] = 5
    result = WORLD.run(make_trace(np.zeros(rows), prompts, [2] * rows), closed_loop=1)
    assert (result.status[:-1] == Status.REFUSED).all()
    assert result.last_token_ns[-1] == 2000


def test_a_session_goes_on_after_a_refused_turn() -> None:
    trace = make_trace([0] * 3, [60, 60, 5], [2] * 3, session=[0] * 3, think_ns=[0, 0, 300])
    result = WORLD.run(trace)
    assert result.status.tolist() == [Status.REFUSED, Status.REFUSED, Status.COMPLETED]
    assert result.arrival_ns.tolist() == [0, 0, 300]
