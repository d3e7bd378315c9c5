"""Admission in vLLM: which waiting requests join the running ones in a step, and with how many tokens.

In the queue's order until the budget, the slots or the blocks run out; the first that does not fit keeps out
all behind it. A request whose blocks a tier below HBM has is set aside while they are loaded (see `loads`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum

from simserve.core import Chunk, Request, WaitReason
from simserve.engines.vllm.options import VllmParams
from simserve.engines.vllm.waiting import Loads, WaitingQueue
from simserve.kvcache import BlockPool, Content, HybridCache, Pool, PrefixCache, blocks_for
from simserve.kvcache.tiers import Plan

# Which pool of KV blocks a vLLM replica has: counted, cached by prefix, or in groups where windows slide.


def make_pool(
    params: VllmParams,
    kv_blocks: int,
    block_size: int,
    max_model_len: int,
    content: Content | None,
    windows: Sequence[int],
) -> Pool:
    """Return an empty pool; with `content` full blocks are cached.

    `windows` are those of the KV groups (0: full attention); with none of them there is one group.
    """
    newest = params.version == "0.33"
    if not any(windows):
        if content is None:
            return BlockPool(kv_blocks, block_size)
        return PrefixCache(kv_blocks, block_size, content, blanks_first=newest)
    if not newest:
        return HybridCache(kv_blocks, block_size, windows, content, blanks_first=False)
    batches = 2 if params.async_scheduling else 1
    interval = params.prefix_cache_retention_interval
    reach = min(max(windows) - 1 + batches * params.max_num_batched_tokens, max_model_len)
    return HybridCache(
        kv_blocks,
        block_size,
        windows,
        content,
        window_limit=blocks_for(reach, block_size) + 1,
        retention_tokens=None if interval == "all" else interval,
    )


class Held(Enum):
    """Why a request is not admitted now."""

    ASIDE = 0
    """It loads, or waits for another's load: go on with the next."""
    OUT = 1
    """It does not fit: nobody behind it is tried."""


class Admission(ABC):
    """The part of the policy that admits; what it works on is the policy's."""

    params: VllmParams
    pool: Pool
    queue: WaitingQueue
    loads: Loads | None
    run_list: dict[int, Request]
    partial: dict[int, Request]
    _block_size: int
    _max_seqs: int
    _gate: bool
    _watermark_blocks: int
    _reason: WaitReason
    """Why the head of the queue was not admitted when one was tried last."""

    @property
    def waiting(self) -> int:
        """Requests in the queue, or on their way up from a KV tier."""
        if self.loads is None:
            return len(self.queue)
        return len(self.queue) + self.loads.waiting

    @abstractmethod
    def holds_prompts(self) -> bool:
        """Return True if prompts must wait for the interval between prefills."""

    def _next_waiting(self) -> Request | None:
        """Return the request to admit next: one whose KV has come up from a tier, else the queue's head."""
        if self.loads is not None and self.loads.landed is not None:
            return self.loads.landed
        return self.queue.head() if self.queue else None

    def _admit(self, budget: int, chunks: list[Chunk], now_ns: int) -> list[Request]:
        """Admit from the head of the queue until the budget, the slots or the blocks run out."""
        queue, pool, size, loads = self.queue, self.pool, self._block_size, self.loads
        run_list, params, gate = self.run_list, self.params, self._gate
        threshold = self.prefill_threshold() if params.long_prefill_token_threshold else 0
        held = self.holds_prompts()
        admitted: list[Request] = []
        while budget > 0 and len(run_list) < self._max_seqs:
            request = self._next_waiting()
            if request is None:
                break
            landed = loads is not None and request is loads.landed
            hits, idle_hits = (request.computed // size, 0) if landed else pool.hit(request)
            tokens = request.known - hits * size
            if held and tokens > 1:
                self._reason = WaitReason.PACE
                break
            plan = None
            if loads is not None and not landed:
                plan = self._ask_tiers(loads, request, hits, idle_hits, now_ns)
                if plan is Held.ASIDE:
                    continue
                if plan is Held.OUT:
                    self._reason = WaitReason.BLOCKS
                    break
            if 0 < threshold < tokens:
                tokens = threshold
            if tokens > budget:
                if not params.enable_chunked_prefill:
                    self._reason = WaitReason.TOKENS
                    break
                tokens = budget
            first = hits * size + tokens
            whole = request.known if gate else first
            if pool.admission_need(first, whole, hits, idle_hits) > self._room(request):
                self._reason = WaitReason.BLOCKS
                break
            if loads is not None and landed:
                loads.admitted(request)
                pool.extend(request, tokens)
            else:
                queue.pop()
                pool.admit(request, hits, tokens)
                request.computed = request.cached = hits * size
                if loads is not None and isinstance(plan, Plan):
                    loads.computed_instead(request, hits, plan)
            budget -= tokens
            run_list[request.id] = request
            admitted.append(request)
            chunks.append(self.schedule_chunk(request, tokens))
        else:
            self._reason = WaitReason.TOKENS if budget <= 0 else WaitReason.SLOTS
        return admitted

    def _ask_tiers(
        self, loads: Loads, request: Request, hits: int, idle_hits: int, now_ns: int
    ) -> Plan | Held:
        """Let the head of the queue load what is worth it; else return what tiers have of it and is not."""
        if loads.follow(request, hits):
            self.queue.pop()
            return Held.ASIDE
        known = request.known
        fits = self.pool.admission_need(known, known, hits, idle_hits) <= self._room(request)
        if self._gate and not fits:
            return Held.OUT
        plan = loads.plan(request, hits, now_ns)
        if not plan.blocks:
            return plan
        if not fits:
            return Held.OUT
        loads.start(self.queue.pop(), hits, plan, now_ns)
        return Held.ASIDE

    def _room(self, request: Request) -> int:
        """Return the free blocks that a waiting request may have."""
        room = self.pool.free
        if self.run_list:
            room -= self._watermark_blocks
        return room if self.loads is None else room - self.loads.kept_from(request)

    def prefill_threshold(self) -> int:
        """Return the most prompt tokens of one request in this step (0 = no limit)."""
        threshold = self.params.long_prefill_token_threshold
        if not threshold:
            return 0
        if self.params.version != "0.33":
            return threshold
        requests = len(self.run_list) + self.waiting
        if requests <= 1:
            return 0
        if self.params.long_prefill_token_threshold_adaptive:
            return max(threshold, self.params.max_num_batched_tokens // requests)
        return threshold

    def schedule_chunk(self, request: Request, tokens: int) -> Chunk:
        """Count `tokens` prompt tokens as computed, as the engine does when it schedules them."""
        cached = request.computed
        request.computed = computed = cached + tokens
        last = computed == request.known
        if last:
            self.partial.pop(request.id, None)
        else:
            self.partial[request.id] = request
        return Chunk(request, tokens, cached, last)
