"""The order of events within one instant."""

from __future__ import annotations

from simpy.events import Timeout

from simserve.sim.clock import Boundary, Clock, Front, WakeUp, order_of


def test_boundaries_come_after_everything_else_in_order_of_rank() -> None:
    env, log = Clock(), []
    note = lambda word: lambda _: log.append((env.now, word))  # noqa: E731
    for rank in (2, 0, 1):
        boundary = Boundary(env, order_of(rank), 10)
        assert boundary.callbacks is not None
        boundary.callbacks.append(note(f"boundary {rank}"))
    arrival = Timeout(env, 10)
    assert arrival.callbacks is not None
    arrival.callbacks.append(note("arrival"))
    env.run()
    assert log == [(10, "arrival"), (10, "boundary 0"), (10, "boundary 1"), (10, "boundary 2")]


def test_a_wake_up_comes_after_the_other_arrivals_of_its_instant() -> None:
    env, log = Clock(), []

    def sleeper():
        idle.append(WakeUp(env))
        yield idle[0]
        log.append((env.now, "awake"))

    def arrivals():
        yield Timeout(env, 5)
        idle[0].fire(order_of(0))
        log.append((env.now, "first"))

    def later():
        yield Timeout(env, 5)
        log.append((env.now, "second"))

    idle: list[WakeUp] = []
    env.process(sleeper())
    env.process(arrivals())
    env.process(later())
    env.run()
    assert log == [(5, "first"), (5, "second"), (5, "awake")]


def test_a_boundary_that_is_brought_forward_wakes_once_and_sooner() -> None:
    env, log = Clock(), []
    boundary = Boundary(env, order_of(0), 100)

    def sleeper():
        yield boundary
        log.append(env.now)

    def arrival():
        yield Timeout(env, 30)
        boundary.bring_forward(order_of(0), 12)

    env.process(sleeper())
    env.process(arrival())
    env.run()
    assert log == [42]


def test_the_front_tells_which_boundaries_of_an_instant_are_over() -> None:
    front = Front()
    assert not front.passed(5, 0)
    front.reach(5, 1)
    assert [front.passed(5, rank) for rank in (0, 1, 2)] == [True, False, False]
    front.reach(5, 0)  # a replica of lower rank that was woken later does not take it back
    assert front.passed(5, 0)
    assert not front.passed(6, 0)
    front.reach(6, 0)
    assert not front.passed(5, 0)
