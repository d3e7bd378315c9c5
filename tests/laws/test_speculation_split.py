"""Speculative decoding on the decoding side of a split: the laws of both."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from simserve.core.batch import Drafting
from simserve.core.request import Acceptance
from simserve.engines.vllm import VllmParams, VllmSplitDraftingPolicy
from simserve.sim import ReplicaSpec
from tests.laws import checkers
from tests.laws.draft_world import chunks_have_gaps
from tests.laws.settings import few
from tests.laws.split_world import SplitWorld, split_worlds
from tests.laws.world import BLOCK_SIZE, MAX_MODEL_LEN, traces


@dataclass(frozen=True)
class DraftSplitWorld(SplitWorld):
    """A split whose decoding side verifies drafts."""

    acceptance: Acceptance = Acceptance((0.7, 0.5))  # noqa: RUF009
    drops_hit: bool = False

    def _side(self, role: Any, count: int, latency: Any, stages: int, trace: Any) -> list[ReplicaSpec]:
        plain = super()._side(role, count, latency, stages, trace)
        if role != "decode":
            return plain
        drafting = Drafting(self.acceptance, self.acceptance.drafts, self.drops_hit)
        content = VllmSplitDraftingPolicy.content_of(trace, BLOCK_SIZE) if self.content else None
        return [
            replace(
                spec,
                acceptance=self.acceptance,
                policy=VllmSplitDraftingPolicy(
                    VllmParams(**self.params),
                    drafting=drafting,
                    kv_blocks=self.kv_blocks,
                    block_size=BLOCK_SIZE,
                    max_model_len=MAX_MODEL_LEN,
                    content=content,
                ),
            )
            for spec in plain
        ]


@st.composite
def worlds(draw: st.DrawFn) -> DraftSplitWorld:
    base = draw(split_worlds("vllm"))
    chances = draw(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=3))
    made = DraftSplitWorld(**{name: getattr(base, name) for name in SplitWorld.__dataclass_fields__})
    return replace(
        made,
        acceptance=Acceptance(tuple(chances)),
        drops_hit=draw(st.booleans()),
        extra_blocks=base.extra_blocks + 3,
        ranks=draw(st.sampled_from([False, False, True])),
        overlap="request",
        params={**base.params, "async_scheduling": draw(st.booleans())},
    )


@few
@given(data=st.data())
def test_all_laws_hold_and_fast_forward_is_stepping(data) -> None:
    world = data.draw(worlds())
    trace = data.draw(traces(sessions=True))
    result, policies = world.run(trace)
    checkers.requests_are_conserved(result, trace)
    checkers.time_is_causal(result)
    checkers.pools_are_empty(policies)
    if result.split is not None and not result.split.failed_transfers:
        checkers.answers_have_their_length(result, trace, MAX_MODEL_LEN)
    if not world.mixed:
        chunks_have_gaps(result)
    stepped, _ = world.run(trace, fast_forward=False)
    checkers.results_agree(result, stepped)
