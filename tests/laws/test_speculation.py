"""Speculative decoding: all laws, fast-forward is stepping, and closed forms where every draw is known."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simserve.core import Status
from simserve.core.request import Acceptance
from simserve.router.base import ROUTERS
from simserve.sim import simulate
from tests.laws import checkers
from tests.laws.draft_world import DraftWorld, chunks_have_gaps, draft_worlds
from tests.laws.settings import few
from tests.laws.world import VARIANTS, World, make_trace, traces

SETTINGS: list[dict[str, Any]] = [
    *VARIANTS["vllm"],
    {"max_num_batched_tokens": 9, "max_num_seqs": 6, "async_scheduling": True},
    {"max_num_batched_tokens": 9, "max_num_seqs": 6},
]
every_setting = pytest.mark.parametrize("params", SETTINGS, ids=str)


def all_laws(result, trace, policies, world: DraftWorld) -> None:
    checkers.requests_are_conserved(result, trace)
    checkers.answers_have_their_length(result, trace, world.max_model_len)
    checkers.time_is_causal(result)
    checkers.work_is_conserved(result)
    checkers.pools_are_empty(policies)
    chunks_have_gaps(result)


@every_setting
@few
@given(data=st.data())
def test_all_laws_hold_and_fast_forward_is_stepping(params, data) -> None:
    world = data.draw(draft_worlds(params))
    trace = data.draw(traces(sessions=True))
    options: dict[str, Any] = {
        "closed_loop": data.draw(st.sampled_from([None, 1, 3, 8])),
        "give_up_ns": data.draw(st.sampled_from([None, None, 7000])),
    }
    result, policies = world.run_watched(trace, **options)
    if options["give_up_ns"] is None:
        all_laws(result, trace, policies, world)
    stepped, watched = world.run_watched(trace, fast_forward=False, **options)
    checkers.pools_are_empty(watched)
    checkers.results_agree(result, stepped)


@few
@given(data=st.data())
def test_one_rank_is_the_plain_replica(data) -> None:
    plain = data.draw(draft_worlds(data.draw(st.sampled_from(SETTINGS)))).but(ranks=0)
    trace = data.draw(traces(sessions=True))
    options: dict[str, Any] = {"closed_loop": data.draw(st.sampled_from([None, 1, 3]))}
    one = plain.but(ranks=1, per_group=0).run(trace, **options)
    other = plain.run(trace, **options)
    no_parts: dict[str, Any] = {"op_ns": {}, "pool_op_ns": {}}
    checkers.results_agree(replace(one, groups=(), **no_parts), replace(other, **no_parts))


def one_by_one(probabilities: tuple[float, ...], **settings: Any) -> DraftWorld:
    """A world with room for everything, whose steps all take 1,000 ns."""
    return DraftWorld(
        probabilities=probabilities,
        lookahead=len(probabilities),
        latency=(1000, 0, 0, 0),
        **{"kv_blocks": 1000, **settings},
    )


@pytest.mark.parametrize("drafts", [1, 2, 5])
@pytest.mark.parametrize("lags", [False, True])
def test_if_every_draft_is_accepted_each_step_shows_all_of_them(drafts: int, lags: bool) -> None:
    """One token from the prompt, then drafts + 1 per step: (n - 1) / (drafts + 1) steps, rounded up."""
    outputs = [1, 2, 7, 12, 31]
    world = one_by_one((1.0,) * drafts, params={"async_scheduling": lags})
    result = world.run(make_trace([0] * 5, [4] * 5, outputs))
    steps = [math.ceil((n - 1) / (drafts + 1)) for n in outputs]
    assert (result.last_token_ns - result.first_token_ns).tolist() == [1000 * n for n in steps]
    assert result.verifications is not None
    assert np.maximum(result.verifications, 0).tolist() == steps
    (replica,) = result.replicas
    assert replica.drafting is not None
    assert replica.drafting.accepted_tokens == drafts * replica.drafting.verifications == drafts * sum(steps)


@few
@given(data=st.data())
def test_if_no_draft_is_accepted_all_is_as_without_speculation(data) -> None:
    """Where neither budget nor blocks bind, to the nanosecond, at equal step times."""
    trace = data.draw(traces(sessions=True))
    lags = data.draw(st.booleans())
    world = one_by_one((0.0, 0.0), params={"async_scheduling": lags, "max_num_batched_tokens": 10_000})
    plain = World(params=world.params, latency=world.latency, kv_blocks=1000)
    options = {"closed_loop": data.draw(st.sampled_from([None, 2]))}
    result, other = world.run(trace, **options), plain.run(trace, **options)
    for name in ("first_scheduled_ns", "first_token_ns", "last_token_ns", "output_tokens", "status"):
        assert getattr(result, name).tolist() == getattr(other, name).tolist(), name
    assert (result.gaps.count.tolist(), result.gaps.sum_ns) == (other.gaps.count.tolist(), other.gaps.sum_ns)


@few
@given(data=st.data())
def test_what_a_request_accepts_does_not_depend_on_the_others(data) -> None:
    """Its verifications follow from the draws alone, however many run beside it and whatever is preempted."""
    world = data.draw(draft_worlds({"max_num_batched_tokens": 10_000}))
    trace = data.draw(traces())
    result = world.run(trace)
    for row in np.flatnonzero((result.status == Status.COMPLETED) & (result.preemptions == 0)).tolist():
        left = int(result.output_tokens[row]) - 1
        gained = world.acceptance.produced(row, max(1, left))
        alone = int(np.searchsorted(gained, left)) if left > 0 else 0
        assert result.verifications is not None
        assert max(0, int(result.verifications[row])) == alone


def test_a_run_of_verifications_is_one_event() -> None:
    world = one_by_one((0.7, 0.5), params={"max_num_seqs": 100}, watched=False).but(max_model_len=20_000)
    trace = make_trace([0] * 50, [4] * 50, np.arange(50) * 100 + 100)
    fast, slow = (world.but(kv_blocks=10**6).run(trace, fast_forward=on) for on in (True, False))
    checkers.results_agree(fast, slow)
    assert slow.replicas[0].wakeups == slow.replicas[0].steps + 1 > 2000
    assert fast.replicas[0].wakeups < 120


@pytest.mark.parametrize("planted", ["blocks", "draws"])
def test_the_second_books_see_planted_faults(planted: str) -> None:
    world = DraftWorld(params={"max_num_batched_tokens": 16}, probabilities=(0.8, 0.8))
    trace = make_trace([0, 0, 0], [9, 5, 7], [20, 30, 12])
    specs = world.specs()
    policy = specs[0].policy.policy  # pyright: ignore
    if planted == "blocks":
        policy.pool.lookahead = 0
    else:
        policy.group._drafting = policy.group._drafting._replace(acceptance=Acceptance((0.1, 0.1)))
    router = ROUTERS.get("round_robin")
    with pytest.raises(checkers.LawBroken):
        simulate(trace, specs, router(router.Params(), seed=0), fast_forward=False)
