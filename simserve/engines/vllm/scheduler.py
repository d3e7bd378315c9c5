"""The scheduling step of vLLM V1: one token budget, running requests first, then the waiting queue.

Follows the scheduler of vLLM 0.33.0 (and 0.19.0, 0.15.1 where `version` says so): there are no phases, a
request is given as many of its known but uncomputed tokens as the budget allows; KV is allocated for just
those tokens; when blocks run out the last running request is preempted and later recomputed; nobody is
admitted in a step that preempted. A step in which nothing but decoding happens costs O(1) here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from simserve.core import Batch, Request, TierResult, Wait, WaitReason
from simserve.engines.base import POLICIES, Scheduler
from simserve.engines.decode_batch import DecodeGroup, MemberDecodeGroup, WindowDecodeGroup
from simserve.engines.vllm.admission import Admission, make_pool
from simserve.engines.vllm.options import VllmParams
from simserve.engines.vllm.running import RunningWalk
from simserve.engines.vllm.waiting import FcfsQueue, Loads, PriorityQueue, WaitingQueue
from simserve.errors import ScenarioError
from simserve.kvcache import BlockPool, Content, HybridCache, PrefixCache
from simserve.kvcache.content import OwnContent, content_of
from simserve.kvcache.tiers import TierCache


@POLICIES.register("vllm")
class VllmPolicy(Admission, Scheduler):
    """Continuous batching with a unified token budget, chunked prefill and preemption by recompute."""

    Params = VllmParams
    can_drop = True
    content_of = staticmethod(content_of)
    """What a trace tells the policy of its prompts."""

    def __init__(
        self,
        params: VllmParams,
        *,
        kv_blocks: int,
        block_size: int,
        max_model_len: int,
        lanes: int = 1,
        content: Content | None = None,
        windows: Sequence[int] = (),
        tiers: TierCache | None = None,
    ) -> None:
        """`kv_blocks` usable blocks (the null block not counted); `lanes` microbatches in flight (PP).

        With `content` full blocks are cached by prefix, unless enable_prefix_caching is off. `windows` are
        the tokens that KV groups see, 0 for all; none: there is one group, of full attention. `tiers` below
        HBM need content, one KV group and one lane.
        """
        self.params = params
        untold = isinstance(content, OwnContent) and params.enable_prefix_caching
        named = content if params.enable_prefix_caching and (any(windows) or not untold) else None
        cached = None if untold else named
        self.pool = make_pool(params, kv_blocks, block_size, max_model_len, named, windows)
        self._only_counts = untold and not any(windows)
        """Blocks have no names yet: the trace tells no content, so until a request is preempted, and may
        find its own blocks again, nothing can be found."""
        self.max_model_len = max_model_len
        self.queue: WaitingQueue = FcfsQueue() if params.scheduling_policy == "fcfs" else PriorityQueue()
        self.loads = self._loads_from(tiers, cached, lanes)
        self.run_list: dict[int, Request] = {}
        """Running requests by id, in vLLM's order: that of admission."""
        self.partial: dict[int, Request] = {}
        """Those of them whose known tokens are not all computed or in flight, in the same order."""
        self._lanes = lanes
        self.plans_ahead = params.async_scheduling and lanes == 1
        """The engine decides a step while the one before runs (see `engine.lookahead`)."""
        self.groups = [self._empty_group() for _ in range(lanes)]
        self.lane_of: dict[int, int] = {}
        """Lane of each decoding request; kept only when there are several lanes."""
        self.flying: Counter[int] = Counter()
        """Prompt chunks in flight by request; kept only when there are several lanes."""
        self._block_size = block_size
        self.budget = params.max_num_scheduled_tokens or params.max_num_batched_tokens
        self._max_seqs = min(params.max_num_seqs, params.max_num_active_seqs or params.max_num_seqs)
        self._fcfs = params.scheduling_policy == "fcfs"
        self._ended: list[Request] = []
        """Async scheduling: finished, but the scheduler hears of it only after its next decision."""
        self._steps_since_prefill = params.prefill_schedule_interval
        self._left_waiting = False
        self._reason = WaitReason.STEP
        self._taken_steps = 1
        """Steps of the run in flight whose blocks are taken: the first, and what `settle` added."""
        self._gate = params.scheduler_reserve_full_isl and params.version != "0.15"
        self._watermark_blocks = int(params.watermark * (kv_blocks + 1))

    @property
    def running(self) -> int:
        """Requests that hold KV."""
        return len(self.run_list)

    @property
    def kv_used_blocks(self) -> int:
        """Blocks held by running requests, and by those whose KV is being loaded."""
        return self.pool.used

    @property
    def kept_out(self) -> WaitReason:
        """What the last decision left the head of the queue waiting for."""
        if self._left_waiting:
            return self._reason
        if self.loads is not None and self.loads.waiting:
            return WaitReason.TRANSFER
        return WaitReason.SLOTS if len(self.run_list) >= self._max_seqs else WaitReason.STEP

    @property
    def kv_tiers(self) -> tuple[TierResult, ...]:
        """Totals of the tiers below HBM."""
        return self.loads.tiers.results() if self.loads is not None else ()

    def add(self, request: Request) -> None:
        """Queue a request."""
        self.queue.add(request)

    def drop(self, request: Request) -> bool:
        """Forget a request whose client gave up; False if it is not in the queue."""
        try:
            self.queue.remove(request)
        except ValueError:
            return False
        return True

    def next_batch(self, now_ns: int, lane: int = 0) -> Batch | Wait:
        """Decide one step (see the module's note)."""
        loads, queue, pool, group = self.loads, self.queue, self.pool, self.groups[lane]
        if loads is not None:
            loads.land(now_ns)
        decodes, needed = group.size, group.blocks_next()
        budget = self.budget - decodes
        unequal = self.partial or budget < 0 or needed > pool.free
        if not unequal and not queue and loads is None and not self._ended:
            # Nobody waits and no prompt is in progress: the same sequences decode until blocks run out.
            self._left_waiting = False
            if not decodes:
                return Wait()
            group.take_next(pool, needed)
            repeats = group.steps_within(pool.free + needed)
            full = len(self.run_list) >= self._max_seqs
            return Batch(decodes, group.context + decodes, [], [], [], [], repeats, full)
        if unequal:
            budget, chunks, preempted, stalled = self.walk_of(self, lane).run()
        else:
            group.take_next(pool, needed)
            chunks, preempted, stalled = [], [], []
        admitted: list[Request] = []
        if (queue or loads is not None) and not preempted:
            admitted = self._admit(budget, chunks, now_ns)
        self._left_waiting = bool(queue) or (loads is not None and loads.landed is not None)
        decodes = group.size
        context = group.context + decodes
        if chunks or preempted or stalled or (self._ended and not decodes):
            if self._lanes > 1:
                self.flying.update(chunk.request.id for chunk in chunks)
            return Batch(decodes, context, chunks, admitted, preempted, stalled)
        until_ns = loads.next_ns if loads is not None else None
        if not decodes:
            return Wait(until_ns)
        repeats = group.steps_within(pool.free + needed)
        full = len(self.run_list) >= self._max_seqs
        if queue and not full:
            repeats = min(repeats, group.steps_blocked())
        sealed = full or (self._fcfs and bool(queue))
        if self._ended:
            repeats = 1  # their slots and blocks are free for the decision after the next
        elif (self._left_waiting or self.partial) and self.holds_prompts():
            repeats = min(repeats, self.params.prefill_schedule_interval - 1 - self._steps_since_prefill)
        if loads is not None:
            whole_prompts = self._gate and self.params.enable_chunked_prefill
            repeats = min(repeats, loads.steps_alike(group, needed, whole_prompts))
        batch = Batch(decodes, context, chunks, admitted, preempted, stalled, repeats, sealed)
        batch.until_ns = until_ns
        return batch

    def update(self, batch: Batch, steps: int, finished: Iterable[Request], lane: int = 0) -> None:
        """Let decodes gain tokens, completed prompts join them, finished requests leave."""
        group = self.groups[lane]
        if steps > 1:
            group.take_steps(self.pool, self._taken_steps, steps)
            self._taken_steps = 1
        group.advance(steps)
        for request in batch.stalled:
            group.join(request)
        if not batch.chunks:
            self._steps_since_prefill += steps
        else:
            self._book_chunks(batch, lane)
        if not self.plans_ahead:
            for request in finished:
                self._release(request)
            return
        for request in self._ended:
            self._release(request)
        self._ended = list(finished)
        for request in self._ended:
            self._skip_if_foreseen(request)

    def _book_chunks(self, batch: Batch, lane: int) -> None:
        """Let completed prompts decode, and note when prompts were last computed."""
        group, lanes, run_list = self.groups[lane], self._lanes, self.run_list
        for request, _, _, last in batch.chunks:
            if lanes > 1:
                self._land(request)
            if last and request.id in run_list:
                group.join(request)
                if lanes > 1:
                    self.lane_of[request.id] = lane
        if not self._left_waiting:
            self._steps_since_prefill = 0  # a step that could not admit everybody does not count

    def settle(self, steps: int) -> None:
        """Take the blocks of the first `steps` steps of the run in flight now, instead of in `update`."""
        self.groups[0].take_steps(self.pool, self._taken_steps, steps)
        self._taken_steps = steps

    def cached_tokens(self, request: Request) -> int:
        """Return the tokens at the start of the request's prompt that are cached now."""
        return self.pool.hit(request)[0] * self._block_size

    def cached_below(self, request: Request, now_ns: int) -> dict[str, int]:
        """Return the tokens after those that the KV tiers can give now, by kind of tier."""
        if self.loads is None:
            return {}
        return self.loads.tokens_by_kind(request, self.pool.hit(request)[0], now_ns)

    # -- running requests ------------------------------------------------------------------------------

    def _loads_from(self, tiers: TierCache | None, content: Content | None, lanes: int) -> Loads | None:
        """Connect the pool to tiers below it, if there are any with room."""
        if tiers is None or tiers.empty:
            return None
        if content is None or not isinstance(self.pool, PrefixCache) or lanes > 1:
            why = "prompts with content" if content is None else "prefix caching, full attention and pp = 1"
            raise ScenarioError(f"needs {why}", "kv_tiers")
        return Loads(self.pool, tiers, content, self.queue)

    def _empty_group(self) -> DecodeGroup:
        pool, lags = self.pool, self.plans_ahead
        if isinstance(pool, HybridCache):
            return WindowDecodeGroup(pool, lags)
        return MemberDecodeGroup(pool.block_size, lags) if pool.quoted else DecodeGroup(pool.block_size)

    def _name_blocks(self) -> None:
        """Let requests find their own blocks again from now on."""
        pool = self.pool
        assert isinstance(pool, BlockPool)
        newest = self.params.version == "0.33"
        self.pool = PrefixCache(pool.total, pool.block_size, OwnContent(), blanks_first=newest)
        self.pool.take_over(pool, self._holders())

    def _holders(self) -> list[int]:
        """Return the ids of all that hold blocks."""
        return list(self.run_list)

    walk_of = RunningWalk
    """Gives running requests their tokens one by one, where order matters."""

    def _land(self, request: Request) -> None:
        self.flying[request.id] -= 1
        if not self.flying[request.id]:
            del self.flying[request.id]

    def in_flight(self, request: Request, lane: int) -> bool:
        """Return True if a step of another lane works on the request, so that its blocks cannot be taken."""
        return request.id in self.flying or self.lane_of.get(request.id, lane) != lane

    def _release(self, request: Request) -> None:
        """Free what a finished request holds."""
        if self.run_list.pop(request.id, None) is None:
            self.queue.remove(request)  # preempted in the step before its end was known
        else:
            self.detach(request)

    def _skip_if_foreseen(self, request: Request) -> None:
        """Schedule no further token for a request whose token in flight reached its limit.

        It keeps slot and blocks until its result is in. One that ends by a stop token is scheduled once more.
        """
        group = self.groups[self.lane_of.get(request.id, 0)]
        known = group.computed(request) + 1
        if known >= min(request.prompt_tokens + request.max_tokens, self.max_model_len):
            group.leave(request)
            request.known = known

    def holds_prompts(self) -> bool:
        """Return True if prompts must wait for the interval between prefills."""
        if self._steps_since_prefill + 1 >= self.params.prefill_schedule_interval:
            return False
        return any(group.size for group in self.groups)

    def detach(self, request: Request, scheduled: int = 0) -> None:
        """Take a request off its group or the partial prompts, and give back its blocks.

        `scheduled` tokens beyond the computed ones hold blocks already.
        """
        if request.decoding:
            self.groups[self.lane_of.pop(request.id, 0)].leave(request)
            request.known = request.computed + 1
        else:
            self.partial.pop(request.id, None)
        self.pool.release(request, request.computed + scheduled)

    def preempt(self, request: Request, scheduled: int = 0) -> None:
        """Free a running request's blocks and return it to the queue; it will be recomputed."""
        self._reason = WaitReason.BLOCKS
        if self._only_counts:
            self._only_counts = False
            self._name_blocks()
        self.detach(request, scheduled)
        del self.run_list[request.id]
        request.computed = 0
        self.queue.put_back(request)
