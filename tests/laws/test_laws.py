"""Laws that hold for every registered policy and router, on workloads made to break them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.laws.checkers import all_laws, pools_are_empty, results_agree, waiting_has_reasons
from tests.laws.settings import every_world, few
from tests.laws.world import World, deployments, traces


def check(world: World, trace, **options) -> None:
    """Run with and without fast-forward; all laws must hold, and both must agree to the nanosecond."""
    result, policies = world.run_watched(trace, **options)
    all_laws(result, trace, world.max_model_len)
    if world.stages == 1:
        waiting_has_reasons(result)
    pools_are_empty(policies)
    stepped, watched = world.run_watched(trace, fast_forward=False, **options)
    pools_are_empty(watched)
    results_agree(result, stepped)


@every_world
@few
@given(data=st.data())
def test_open_loop(world: World, data) -> None:
    check(data.draw(deployments(world)), data.draw(traces()))


@every_world
@few
@given(data=st.data())
def test_closed_loop_and_sessions(world: World, data) -> None:
    trace = data.draw(traces(sessions=True))
    check(data.draw(deployments(world)), trace, closed_loop=data.draw(st.sampled_from([None, 1, 3, 8])))
