"""A scheduler never sees how long an answer will be: its decisions cannot depend on what lies ahead."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from simserve.core import Request, Trace
from simserve.engines.base import POLICIES
from tests.laws.checkers import LawBroken
from tests.laws.settings import every_world, fewer
from tests.laws.watch import Decision
from tests.laws.world import World, deployments, make_trace, traces


def decisions_until(world: World, trace: Trace, horizon_ns: int) -> list[list[Decision]]:
    """What each replica's policy decided up to the horizon, step by step."""
    _, policies = world.run_watched(trace, fast_forward=False)
    return [[made for made in policy.decisions if made.now_ns <= horizon_ns] for policy in policies]


def decides_without_foresight(world: World, trace: Trace, pick: int) -> None:
    """Lengthen all answers that end after some step: what was decided up to that step must not change."""
    result, policies = world.run_watched(trace, fast_forward=False)
    times = sorted({made.now_ns for policy in policies for made in policy.decisions})
    if not times:
        return
    horizon_ns = times[pick % len(times)]
    ends_later = (result.last_token_ns > horizon_ns).astype(np.int64)
    longer = replace(trace, output_tokens=trace.output_tokens + ends_later * (5 + np.arange(len(trace))))
    if decisions_until(world, trace, horizon_ns) != decisions_until(world, longer, horizon_ns):
        raise LawBroken(f"decisions up to {horizon_ns} ns depend on the length of answers that end later")


@every_world
@fewer
@given(data=st.data())
def test_decisions_do_not_depend_on_what_lies_ahead(world: World, data) -> None:
    trace = data.draw(traces(sessions=data.draw(st.booleans())))
    assume(len(trace) > 1)
    decides_without_foresight(data.draw(deployments(world)), trace, data.draw(st.integers(0, 200)))


def test_a_request_does_not_carry_its_length() -> None:
    assert not [name for name in Request.__slots__ if "output" in name or "length" in name]
    assert not hasattr(Request(0, 0, 5, 5), "__dict__")


def test_planted_a_policy_that_peeks(monkeypatch) -> None:
    """Shortest answer first needs to know the answers."""
    trace = make_trace([0, 0], [5, 5], [5, 4])
    lengths: list[int] = []
    orca = POLICIES.get("orca")
    add = orca.add

    def shortest_first(self, request: Request) -> None:
        add(self, request)
        self._waiting = type(self._waiting)(sorted(self._waiting, key=lambda waiting: lengths[waiting.id]))

    monkeypatch.setattr(orca, "add", shortest_first)
    run = World.run_watched

    def tell(self, seen: Trace, **options):
        lengths[:] = seen.output_tokens.tolist()
        return run(self, seen, **options)

    monkeypatch.setattr(World, "run_watched", tell)
    with pytest.raises(LawBroken, match="depend on the length"):
        decides_without_foresight(World("orca", {"max_num_seqs": 1}), trace, pick=0)
