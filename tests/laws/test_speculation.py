"""Speculative decoding: all laws, fast-forward is stepping, and closed forms where every draw is known."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.laws import checkers
from tests.laws.draft_world import DraftWorld, chunks_have_gaps, draft_worlds
from tests.laws.settings import few
from tests.laws.world import VARIANTS, traces

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
