"""Ranks that step together: all laws of replicas, one rank is a plain replica, no step beats its ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from simserve.core import Result
from simserve.experts import contiguous
from simserve.experts.popularity import Zipf
from simserve.experts.state import ExpertPlan, Rebalancing, Swaps
from simserve.sim import GroupSpec, ReplicaSpec
from tests.laws.checkers import all_laws, pools_are_empty, results_agree
from tests.laws.settings import every_world, few
from tests.laws.world import World, deployments, make_trace, traces
from tests.sim.plain_lockstep import PlainLockstep

SHARES = Zipf(s=1.0).shares(2, 8, 2, seed=1)


def expert_plan(blocking: bool) -> ExpertPlan:
    """Popularity that swaps every 3 us, and placements that follow every 7 steps."""
    how = Rebalancing(7, 5, redundant=4, expert_bytes=3000, bytes_per_s=1e9, blocking=blocking)
    return ExpertPlan(SHARES, contiguous(2, 8, 4, 4), Swaps(SHARES, 0.5, 1, lambda n: 3000 * (n + 1)), how)


@dataclass(frozen=True)
class RankedWorld(World):
    """Replicas in groups of `ranks` that step together."""

    ranks: int = 1
    per_group: int = 0
    experts: str = "even"

    def specs(self) -> list[ReplicaSpec]:
        """Fresh replicas; the last group may be smaller."""
        plain = super().specs()
        plan = None if self.experts == "even" else expert_plan(self.experts == "blocking")
        result = []
        for start in range(0, len(plain), self.ranks):
            latency: Any = PlainLockstep(plain[0].latency, self.per_group)  # pyright: ignore[reportArgumentType]
            group = GroupSpec(f"group-{start}", "all", latency, plan)
            result += [
                replace(spec, latency=latency, group=group) for spec in plain[start : start + self.ranks]
            ]
        return result


def ranked(world: World, **settings: Any) -> RankedWorld:
    return RankedWorld(**{**{f: getattr(world, f) for f in world.__dataclass_fields__}, **settings})


@st.composite
def rank_worlds(draw: st.DrawFn, world: World) -> RankedWorld:
    """The world with several ranks in one or two groups."""
    base = draw(deployments(world)).but(stages=1, replicas=draw(st.sampled_from([1, 2, 3, 5])))
    return ranked(
        base,
        ranks=draw(st.sampled_from([1, 2, 3, 5])),
        per_group=draw(st.sampled_from([0, 7])),
        experts=draw(st.sampled_from(["even", "hidden", "blocking"])),
    )


@every_world
@few
@given(data=st.data())
def test_all_laws_hold_and_fast_forward_is_stepping(world: World, data) -> None:
    ranks = data.draw(rank_worlds(world))
    trace = data.draw(traces(sessions=True))
    options: dict[str, Any] = {"closed_loop": data.draw(st.sampled_from([None, 1, 3, 8]))}
    result, policies = ranks.run_watched(trace, **options)
    all_laws(result, trace, ranks.max_model_len)
    pools_are_empty(policies)
    stepped, watched = ranks.run_watched(trace, fast_forward=False, **options)
    pools_are_empty(watched)
    results_agree(result, stepped)
    assert [(g.steps, g.busy_ns) for g in result.groups] == [(g.steps, g.busy_ns) for g in stepped.groups]
    assert [g.moved_bytes for g in result.groups] == [g.moved_bytes for g in stepped.groups]


@every_world
@few
@given(data=st.data())
def test_one_rank_is_the_plain_replica(world: World, data) -> None:
    """To the nanosecond, with its timeline, whatever the policy, the router and the trace."""
    plain = data.draw(deployments(world)).but(stages=1)
    trace = data.draw(traces(sessions=True))
    options: dict[str, Any] = {"closed_loop": data.draw(st.sampled_from([None, 1, 3]))}
    one = ranked(plain, ranks=1).run(trace, **options)
    one = replace(one, groups=(), op_ns={}, pool_op_ns={})  # these name the parts of a group's steps
    results_agree(one, replace(plain.run(trace, **options), pool_op_ns={}))


@every_world
@few
@given(data=st.data())
def test_clients_that_give_up_see_the_same_in_steps_and_in_runs(world: World, data) -> None:
    ranks = data.draw(rank_worlds(world))
    trace = data.draw(traces(sessions=True))
    give_up_ns = data.draw(st.sampled_from([2000, 7000, 30_000]))
    result, policies = ranks.run_watched(trace, give_up_ns=give_up_ns)
    pools_are_empty(policies)
    stepped, _ = ranks.run_watched(trace, give_up_ns=give_up_ns, fast_forward=False)
    results_agree(result, stepped)
    shown = int(result.output_tokens.sum()) - result.wasted_tokens
    assert int(result.gaps.count.sum()) == shown - int((result.first_token_ns >= 0).sum())


def slowest_alone(world: World, trace, result: Result) -> None:
    """No request is served faster in a group than it would be if its rank were alone."""
    for index in range(world.replicas):
        mine = np.flatnonzero(result.replica == index)
        if not len(mine):
            continue
        alone = world.but(replicas=1, router="round_robin", router_params={}).run(
            make_trace(trace.arrival_ns[mine], trace.prompt_tokens[mine], trace.output_tokens[mine])
        )
        assert alone.last_token_ns.max() <= result.last_token_ns[mine].max()


@few
@given(trace=traces(), per_group=st.sampled_from([0, 7]))
def test_a_group_is_never_faster_than_its_ranks_alone(trace, per_group: int) -> None:
    world = World(replicas=3, policy="orca", params={"max_num_seqs": 100}, kv_blocks=10_000)
    trace = replace(trace, max_tokens=None, priority=None)
    result = ranked(world, ranks=3, per_group=per_group).run(trace)
    slowest_alone(world, trace, result)


def test_a_prompt_on_one_rank_slows_the_decodes_of_all() -> None:
    """Two ranks, by hand: an answer of 4 tokens, and a prompt of 16 that comes in its second step."""
    world = ranked(World(replicas=2, latency=(1000, 10, 0, 0)), ranks=2)
    trace = make_trace([0, 1500], [4, 16], [4, 1])
    result = world.run(trace)
    # Prompt 1040; a decode step until 2050; one with the other rank's prompt, 1160, until 3210; then 1010.
    assert result.first_token_ns.tolist() == [1040, 3210]
    assert result.last_token_ns.tolist() == [4220, 3210]
    assert result.groups[0].steps == 4
