"""vLLM's decoding replicas of a prefill/decode split with speculative decoding; and what vLLM means by it.

Blocks for drafts are not held while KV is on its way; they are when the request is admitted, which must wait
if they are not free. A request is let in only if a verification's blocks are free beside its prompt (0.33.0:
`_spec_decode_step_blocks`). With a KV connector the last block of a prefix hit is always computed again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from pydantic import BaseModel

from simserve.core import Batch, Chunk, Request, Wait, WaitReason
from simserve.core.batch import Drafting, VerifyBatch
from simserve.core.request import Acceptance
from simserve.engines.base import DraftingEngine
from simserve.engines.spec_decode import DraftedDecodes, DraftPool, Pause
from simserve.engines.vllm.disagg import VllmSplitPolicy
from simserve.engines.vllm.options import VllmParams
from simserve.engines.vllm.running import RunningWalk
from simserve.engines.vllm.scheduler import VllmPolicy
from simserve.errors import ScenarioError
from simserve.kvcache import Content, blocks_for
from simserve.kvcache.content import OwnContent
from simserve.kvcache.spec_decode import DraftBlockPool, DraftPrefixCache

# vLLM's scheduler with speculative decoding: every running decode asks for its last token and its drafts.
#
# Follows vLLM V1 (`Scheduler.schedule`, `update_from_output` and `AsyncScheduler`, read in 0.33.0): drafts
# count against the token budget and are cut where it ends; blocks cover `lookahead` tokens more than are
# scheduled (EAGLE, multi-token prediction, draft models; not for n-grams); nothing is scheduled at or beyond
# max_model_len - 1; what a step rejects is taken off when its result is in, which with asynchronous
# scheduling
# is after the next step was planned; a preempted request loses its drafts. A last prompt chunk gives a token
# and the drafts for the next step.


class DraftingWalk(RunningWalk):
    """The running list, one after the other; who gets fewer tokens than all others leaves its group."""

    policy: VllmDraftingPolicy

    def __init__(self, policy: VllmDraftingPolicy, lane: int) -> None:
        """Put the blocks of decoding requests in the pool's books, where each is looked at by itself."""
        self.given = {}
        super().__init__(policy, lane)
        self._left = policy.whole_budget
        self._group = policy.group
        self._needed = self._group.blocks_next()
        for request in self.order:
            if request.decoding:
                policy.pool.blocks[request.id] = self._group.blocks_of(request)

    def run(self) -> tuple[int, list[Chunk], list[Request], list[Request]]:
        """Return what `RunningWalk` does; those with fewer drafts than others are among the stalled."""
        budget, chunks, preempted, stalled = super().run()
        policy, group = self.policy, self._group
        for request in self.order:
            if not request.decoding:
                continue
            given = self.given[request.id]
            if given < group.width:
                group.leave(request)
                policy.trimmed[request.id] = given
                stalled.append(request)
            else:
                del policy.pool.blocks[request.id]
        group.booked(self._needed)
        return budget + policy.rows, chunks, preempted, stalled

    def _wanted(self, request: Request) -> int:
        if not request.decoding:
            return super()._wanted(request)
        room = self.policy.max_model_len - 1 - self._group.optimistic(request)
        return max(0, min(self._group.width, self.budget, room))

    # The rows that drafting adds to each request are part of `budget` while the list is walked.

    @property
    def budget(self) -> int:
        """Tokens left for the next request."""
        return self._left - self.policy.rows * (len(self.given) + 1)

    @budget.setter
    def budget(self, tokens: int) -> None:
        self._left = tokens + self.policy.rows * (len(self.given) + 1)

    def _computed(self, request: Request) -> int:
        return self._group.optimistic(request) if request.decoding else request.computed

    def _make_room(self, request: Request, tokens: int) -> bool:
        pool = self.policy.pool
        needed = pool.needed(request, self._computed(request), tokens)
        made = super()._make_room(request, tokens)
        if made and request.decoding:
            pool.blocks[request.id] += needed
        return made


class VllmDraftingPolicy(VllmPolicy):
    """The scheduler of a replica that speculates."""

    pool: DraftPool
    group: DraftedDecodes
    walk_of = DraftingWalk

    def __init__(
        self,
        params: VllmParams,
        *,
        drafting: Drafting,
        kv_blocks: int,
        block_size: int,
        max_model_len: int,
        content: Content | None = None,
        lanes: int = 1,
        **options: Any,
    ) -> None:
        """As `VllmPolicy`, without pipeline stages, sliding-window groups and KV tiers."""
        if lanes > 1 or any(options.values()):
            raise ScenarioError("needs pp = 1, one KV group and no KV tiers", "speculation")
        super().__init__(
            params, kv_blocks=kv_blocks, block_size=block_size, max_model_len=max_model_len, content=content
        )
        self.drafting = drafting
        newest = params.version == "0.33"
        if content is None or isinstance(content, OwnContent) or not params.enable_prefix_caching:
            self.pool = DraftBlockPool(kv_blocks, block_size, drafting, max_model_len)
        else:
            self.pool = DraftPrefixCache(kv_blocks, block_size, content, newest, drafting, max_model_len)
        self.rows = drafting.rows if newest else 0
        """Tokens of the budget that each scheduled request takes beyond its own."""
        if not newest and params.max_num_scheduled_tokens is None:
            self.whole_budget -= drafting.rows * params.max_num_seqs
        self.group = DraftedDecodes(self.pool, drafting, self.plans_ahead)
        self.groups = [self.group]
        self.trimmed: dict[int, int] = {}
        """Requests of the step being planned that get fewer tokens than the others, and how many."""
        self._final: dict[int, int] = {}
        """Asynchronous scheduling: tokens with KV of requests that ended, until they are released."""

    @property
    def budget(self) -> int:
        """What the step's budget leaves if every decoding request has its drafts, before its own token."""
        return self.whole_budget - self.group.asked() + (1 - self.rows) * self.group.size

    @budget.setter
    def budget(self, tokens: int) -> None:
        self.whole_budget = tokens

    def next_batch(self, now_ns: int, lane: int = 0) -> Batch | Wait:
        """Decide one step (see `VllmPolicy`)."""
        self.trimmed = {}
        batch = super().next_batch(now_ns, lane)
        if isinstance(batch, Wait):
            return batch
        group, trimmed = self.group, self.trimmed
        sums = group.contexts(batch.repeats)
        for request in batch.stalled:
            if request.id in trimmed:
                sums = sums + request.computed + trimmed[request.id]
        return VerifyBatch(batch, group.size + len(trimmed), sums, trimmed)

    def update(self, batch: Batch, steps: int, finished: Iterable[Request], lane: int = 0) -> None:
        """Let decodes gain what was accepted, completed prompts join them, finished requests leave."""
        assert isinstance(batch, VerifyBatch)
        for request in batch.stalled:
            given = batch.trimmed.get(request.id)
            if given is not None:
                self._verify(request, given)
        finished = list(finished)
        for request in finished:
            self._final[request.id] = -batch.cut.get(request.id, 0)
        super().update(batch, steps, finished, lane)

    def drop(self, request: Request) -> bool:
        """Forget a request whose client gave up; False if it is not in the queue."""
        dropped = super().drop(request)
        if dropped:
            self.group.pauses.pop(request.id, None)
        return dropped

    def preempt(self, request: Request, scheduled: int = 0) -> None:
        """Free a running request's blocks and return it to the queue; its drafts are lost."""
        super().preempt(request, scheduled)
        pause = self.group.pauses.get(request.id)
        if pause is not None:
            self.group.pauses[request.id] = Pause(pause.verified)

    def detach(self, request: Request, scheduled: int = 0) -> None:
        """Take a request off its group or the partial prompts, and give back its blocks."""
        if request.decoding:
            certain = self.group.certain(request)
            self.group.leave(request)
            request.known = request.computed + 1
        else:
            self.partial.pop(request.id, None)
            certain = request.computed + scheduled
        self.pool.release(request, self._final.get(request.id, certain))

    def _admit(self, budget: int, chunks: list[Chunk], now_ns: int) -> list[Request]:
        """Admit from the head of the queue; one by one if each takes more of the budget than its tokens."""
        if not self.rows:
            return super()._admit(budget, chunks, now_ns)
        admitted: list[Request] = []
        slots = self._max_seqs
        while budget > self.rows and len(self.run_list) < slots:
            self._max_seqs = len(self.run_list) + 1
            one = super()._admit(budget - self.rows, chunks, now_ns)
            if not one:
                break
            admitted += one
            budget -= chunks[-1].tokens + self.rows
        else:
            self._reason = WaitReason.TOKENS if budget <= self.rows else WaitReason.SLOTS
        self._max_seqs = slots
        return admitted

    def _name_blocks(self) -> None:
        """Let requests find their own blocks again from now on (see `VllmPolicy`)."""
        pool, newest = self.pool, self.params.version == "0.33"
        named = DraftPrefixCache(
            pool.total, pool.block_size, OwnContent(), newest, self.drafting, self.max_model_len
        )
        named.take_over(pool, self._holders())
        named.blocks = pool.blocks
        self.pool = self.group.pool = named

    # -- parts -----------------------------------------------------------------------------------------

    def _verify(self, request: Request, given: int) -> None:
        """Book the step of a request that was given fewer tokens than others."""
        group, pause = self.group, self.group.pauses[request.id]
        drawn = self.drafting.acceptance.tokens(np.array([request.id]), np.array([pause.verified]))
        gain = min(int(drawn[0]), given)
        before, ahead = request.computed, given - gain if self.plans_ahead else 0
        request.computed += gain
        group.pauses[request.id] = Pause(pause.verified + 1, ahead, before)

    def _release(self, request: Request) -> None:
        """Free what a finished request holds.

        Its full blocks stay cached: those known when its last step was planned, or with asynchronous
        scheduling all, for there they enter the cache when the result is in.
        """
        if not self.plans_ahead:
            self._final.pop(request.id, None)
        super()._release(request)
        self._final.pop(request.id, None)
        self.group.pauses.pop(request.id, None)

    def _skip_if_foreseen(self, request: Request) -> None:
        """Schedule no further token for a request that is sure to have reached its limit.

        It is sure if the step in flight reaches it although every draft is rejected.
        """
        if not request.decoding:
            return
        group = self.group
        computed, certain = group.computed(request), group.certain(request)
        self._final[request.id] += computed
        sure = certain + 1 >= request.prompt_tokens + request.max_tokens
        if sure or group.optimistic(request) >= self.max_model_len - 1:
            group.leave(request)
            request.known = computed + 1


class VllmSplitDraftingPolicy(VllmDraftingPolicy, VllmSplitPolicy):
    """Either side of a split, speculating."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """As for `VllmDraftingPolicy`."""
        super().__init__(*args, **kwargs)
        step = self.group.width + self.drafting.lookahead
        self._step_blocks = blocks_for(step, self._block_size)

    def _room(self, request: Request) -> int:
        """Return the free blocks that a waiting request may have."""
        room = super()._room(request)
        return room - self._step_blocks if self._apart(request) else room

    def _take_room(self, request: Request) -> bool:
        """Hold blocks for a whole prompt whose KV is to come, none for drafts; False if there is no room."""
        pool = self.pool
        usual, pool.admits_lookahead = pool.admits_lookahead, False
        taken = super()._take_room(request)
        pool.admits_lookahead = usual
        return taken

    def _admit_loaded(self, request: Request, chunks: list[Chunk]) -> bool:
        """Admit the head, whose prompt is here, if the slots for its drafts are free too."""
        more = self.pool.needed(request, request.computed, 1)
        if more > self.pool.free:
            return False
        self.pool.take(more)
        self.pool.blocks[request.id] += more
        return super()._admit_loaded(request, chunks)

    def _give_back_room(self, request: Request, hits: int) -> None:
        self.pool.release(request, hits * self._block_size)


def _drafting(params: BaseModel, method: str, acceptance: Acceptance, split: bool) -> Drafting:
    """Return what vLLM does with a method (`VllmConfig.num_lookahead_tokens`, `SpeculativeConfig`)."""
    assert isinstance(params, VllmParams)
    newest = params.version == "0.33"
    head = method in ("mtp", "eagle")
    return Drafting(
        acceptance,
        lookahead=acceptance.drafts if method != "ngram" else 0,
        drops_hit=head and (split or not newest),
        lookahead_at_admission=newest,
        rows=int(method == "draft_model"),
    )


def _settings(params: BaseModel, method: str) -> BaseModel:
    """Return the settings with which the engine starts: before 0.33, n-grams keep it from planning ahead."""
    assert isinstance(params, VllmParams)
    if method == "ngram" and params.version != "0.33":
        return params.model_copy(update={"async_scheduling": False})
    return params


SPEC_DECODE = DraftingEngine(
    whole=VllmDraftingPolicy,
    decode=VllmSplitDraftingPolicy,
    drafting=_drafting,
    settings=_settings,
    source="vLLM 0.33.0's scheduler with speculative_config",
)
