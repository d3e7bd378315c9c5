"""vLLM's scheduler with drafts, in cases small enough to follow by hand: `engines/vllm/spec_decode.py`."""

from __future__ import annotations

from typing import Any

import pytest

from simserve.core import Request
from simserve.core.batch import Drafting, VerifyBatch
from simserve.core.request import Acceptance
from simserve.engines.vllm import VllmParams
from simserve.engines.vllm.spec_decode import VllmDraftingPolicy


class SameStart:
    """Every prompt holds the same tokens; answers differ."""

    quoted = False

    def keys(self, request: Request, blocks: int) -> list[int]:
        """The first blocks of all prompts are equal."""
        shared = request.prompt_tokens // 4
        return [n if n < shared else 1000 * (request.id + 1) + n for n in range(blocks)]

    def forget(self, request: Request) -> None:
        """Nothing is remembered."""


def policy(
    chances: tuple[float, ...],
    *,
    lookahead: int | None = None,
    content: Any = None,
    longest: int = 100,
    **how: Any,
) -> VllmDraftingPolicy:
    drafting = Drafting(
        Acceptance(chances),
        lookahead=len(chances) if lookahead is None else lookahead,
        drops_hit=how.pop("drops_hit", False),
        lookahead_at_admission=how.get("version", "0.33") == "0.33",
        rows=how.pop("rows", 0),
    )
    return VllmDraftingPolicy(
        VllmParams(**how),
        drafting=drafting,
        kv_blocks=100,
        block_size=4,
        max_model_len=longest,
        content=content,
    )


def step(made: VllmDraftingPolicy, finished: tuple[Request, ...] = (), steps: int = 1) -> VerifyBatch:
    batch = made.next_batch(0)
    assert isinstance(batch, VerifyBatch)
    made.update(batch, steps, finished)
    return batch


def started(made: VllmDraftingPolicy, *prompts: int) -> list[Request]:
    """Let requests with these prompts join the decoding ones."""
    requests = [Request(number, 0, tokens, 1000) for number, tokens in enumerate(prompts)]
    for request in requests:
        made.add(request)
    step(made)
    return requests


def test_drafts_take_budget_and_are_cut_where_it_ends() -> None:
    """Three decodes want 4 tokens each of 10: the third gets 2, and a prompt nothing."""
    made = policy((1.0, 1.0, 1.0), max_num_batched_tokens=10)
    requests = started(made, 3, 3, 3)
    made.add(Request(9, 0, 5, 10))
    batch = step(made)
    assert (batch.decodes, batch.chunks, batch.trimmed) == (3, [], {2: 2})
    assert batch.decode_context == (3 + 4) + (3 + 4) + (3 + 2)
    assert [made.group.computed(request) for request in requests] == [7, 7, 5]


def test_a_prompt_gets_what_drafts_leave() -> None:
    made = policy((0.0, 0.0, 0.0), max_num_batched_tokens=16)
    started(made, 3, 3)
    made.add(Request(9, 0, 50, 10))
    batch = step(made)
    assert [(chunk.tokens, chunk.last) for chunk in batch.chunks] == [(16 - 2 * 4, False)]


@pytest.mark.parametrize(("version", "first"), [("0.33", 2), ("0.19", 1)])
def test_blocks_cover_drafts_of_this_step_and_the_next(version: str, first: int) -> None:
    """A prompt of 4, 3 drafts: ceil((4 + 3) / 4) blocks, older versions ceil(4 / 4); then (4 + 4 + 3) / 4."""
    made = policy((0.0, 0.0, 0.0), version=version)
    started(made, 4)
    assert made.kv_used_blocks == first
    step(made)
    assert made.kv_used_blocks == 3
    step(made)  # everything was rejected: 5 computed, 5 + 4 + 3 slots
    assert made.kv_used_blocks == 3


def test_planning_ahead_takes_it_that_all_is_accepted() -> None:
    """The second verification is planned for 4 + 4 computed tokens, of which 3 turn out to be rejected."""
    made = policy((0.0, 0.0, 0.0), async_scheduling=True)
    (request,) = started(made, 4)
    step(made)
    assert made.kv_used_blocks == 3
    step(made)
    assert (made.group.computed(request), made.kv_used_blocks) == (6, 4)  # 4 + 4 + 4 + 3 slots


def test_blocks_stay_held_when_drafts_are_rejected_and_all_come_back() -> None:
    made = policy((0.0, 0.0, 0.0))
    (request,) = started(made, 4)
    batch = step(made)
    assert batch.repeats > 1
    step(made, finished=(request,), steps=1)
    assert (made.running, made.kv_used_blocks) == (0, 0)


@pytest.mark.parametrize(("drops", "hits"), [(False, 3), (True, 2)])
def test_a_hit_loses_its_last_block_where_the_draft_needs_it(drops: bool, hits: int) -> None:
    made = policy((0.5,), content=SameStart(), drops_hit=drops)
    started(made, 13)
    late = Request(7, 0, 13, 10)
    made.add(late)
    batch = step(made)
    assert (late.cached, batch.chunks[0].tokens) == (4 * hits, 13 - 4 * hits)


def test_only_certain_tokens_stay_cached() -> None:
    """Prompt 4, 3 drafts accepted twice: 12 computed, but 9 were known when the last step was planned."""
    made = policy((1.0, 1.0, 1.0), content=SameStart())
    (request,) = started(made, 4)
    step(made)
    step(made, finished=(request,))
    assert request.computed == 12
    again = Request(0, 0, 4, 10)
    again.known = 13
    assert made.pool.hit(again)[0] == 2


def test_nothing_is_computed_at_the_longest_length() -> None:
    """With 20 tokens at most, position 19 is never computed: 16 computed leave 3 tokens of 4."""
    made = policy((1.0, 1.0, 1.0), longest=20)
    started(made, 12)
    step(made)
    batch = step(made)
    assert batch.trimmed == {0: 3}
    assert batch.decode_context == 16 + 3


def test_a_draft_model_takes_a_row_of_each_request() -> None:
    """0.33: two decodes of 4 + 1 leave 10 of 20 for a prompt, less its row; 0.19: 20 - 4 seats for all."""
    for version, left in (("0.33", 9), ("0.19", 8)):
        made = policy((0.0, 0.0, 0.0), rows=1, version=version, max_num_batched_tokens=20, max_num_seqs=4)
        started(made, 3, 3)
        made.add(Request(9, 0, 50, 10))
        assert step(made).chunks[0].tokens == left


class Quoted(SameStart):
    """All requests hold the same tokens, but for the 8th: prompts quote an answer still being made."""

    quoted = True

    def keys(self, request: Request, blocks: int) -> list[int]:
        """The blocks of every request have the same names."""
        return [n + 1000 * (request.id == 8) for n in range(blocks)]


def hit_of(batch: VerifyBatch, number: int) -> list[int]:
    return [chunk.cached for chunk in batch.chunks if chunk.request.id == number]


@pytest.mark.parametrize(("planned_ahead", "found_in"), [(False, 1), (True, 2)])
def test_a_block_that_drafts_fill_is_found_as_without(planned_ahead: bool, found_in: int) -> None:
    """A prompt of 3 tokens and its first answer token fill a block of 4.

    The token is known when step 1 is planned; planned ahead, step 1 does not know it, and step 2 does.
    """
    for asked_in in (1, 2):
        made = policy((1.0,), content=Quoted(), async_scheduling=planned_ahead)
        started(made, 3)
        if asked_in == 2:
            step(made)
        made.add(Request(9, 0, 6, 10))
        assert hit_of(step(made), 9) == [4 if asked_in >= found_in else 0]


def test_a_block_is_filled_while_a_prompt_is_in_progress() -> None:
    """Requests are then looked at one by one."""
    made = policy((1.0,), content=Quoted(), async_scheduling=False, long_prefill_token_threshold=2)
    started(made, 3)
    made.add(Request(8, 0, 40, 10))
    step(made)
    made.add(Request(9, 0, 6, 10))
    batch = step(made)
    assert hit_of(batch, 8) == [2]
    assert hit_of(batch, 9) == [4]


def test_a_blocked_prompt_is_looked_at_when_a_block_is_filled() -> None:
    """Two tokens a step: 4, 6, 8, 10, 12 are known when the next five steps are planned."""
    made = policy((1.0,), content=Quoted(), async_scheduling=False)
    started(made, 3)
    assert [made.group.full_blocks(made.run_list[0], ahead) for ahead in range(5)] == [1, 1, 2, 2, 3]
    assert made.group.steps_blocked() == 2
