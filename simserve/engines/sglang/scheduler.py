"""The scheduler of SGLang 0.5.23: prefill first, one prompt cut at a time, retraction when memory ends.

Models the decisions of one replica without data parallelism, speculation, grammars or LoRA; of the
hierarchical cache only the outline (see `loads`). The rules of all else were checked step by step against
logs of the real scheduler (see `validate.golden_sglang`).
"""

from __future__ import annotations

from collections.abc import Iterable

from simserve.core import Batch, Request, TierResult, Wait, WaitReason
from simserve.engines.base import POLICIES, Scheduler
from simserve.engines.sglang.decode import Decode, Results
from simserve.engines.sglang.kv_loads import Loads
from simserve.engines.sglang.options import SglangParams
from simserve.engines.sglang.prefill import Prefill
from simserve.engines.sglang.sequence import Content, Sequence, UniqueContent, trace_content
from simserve.engines.sglang.state import Outcome, State, Step
from simserve.errors import ScenarioError
from simserve.kvcache.content import Run, RunContent, Runs, canonical
from simserve.kvcache.radix_pool import RadixPool
from simserve.kvcache.tiers import TierCache


@POLICIES.register("sglang")
class SglangPolicy(Scheduler):
    """Decides the steps of one SGLang replica."""

    Params = SglangParams
    can_drop = True
    content_of = staticmethod(trace_content)
    """What a trace tells the policy of its prompts."""

    def __init__(
        self,
        params: SglangParams,
        *,
        kv_blocks: int,
        block_size: int,
        max_model_len: int,
        lanes: int = 1,
        content: Content | None = None,
        keep_ratio_when_idle: bool = False,
        tiers: TierCache | None = None,
    ) -> None:
        """`block_size` is SGLang's page size in tokens; `content` says what the prompts are.

        Without `content` no two requests have a token in common. `keep_ratio_when_idle` leaves out what the
        engine's loop does outside the scheduler: it resets the new-token ratio whenever it idles. `tiers`
        below HBM need content and the radix cache.
        Raises ScenarioError for more than one lane: pipeline parallelism is not modelled.
        """
        if lanes != 1:
            raise ScenarioError("is not modelled with policy sglang", "pp", lanes, "1")
        eviction, cache = params.radix_eviction_policy, not params.disable_radix_cache
        pool = RadixPool(kv_blocks * block_size, block_size, eviction, cache)
        self.params = params
        self.state = State(params, pool)
        self.last = Step()
        """The step decided last."""
        self._decode = Decode(self.state)
        self._prefill = Prefill(self.state, self._decode, shared_content=content is not None)
        self._results = Results(self.state)
        self._content = content or UniqueContent()
        self.state.loads = self._loads_from(tiers, content)
        self._most_tokens = max_model_len - 1 - block_size
        self._overlap = not params.disable_overlap_schedule
        self.plans_ahead = self._overlap
        """The engine decides a step while the one before runs (see `engine.lookahead`)."""
        self._keep_ratio_when_idle = keep_ratio_when_idle

    @property
    def running(self) -> int:
        """Requests that hold KV."""
        in_prefill = sum(not sequence.done for sequence in self.last.prefill)
        return self.state.batch.live + len(self.state.parting) + in_prefill

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self.state.queue)

    @property
    def kv_used_blocks(self) -> int:
        """Pages that requests in flight hold."""
        pool = self.state.pool
        return (pool.capacity - pool.room) // pool.page_size

    @property
    def kept_out(self) -> WaitReason:
        """What the last decision left the head of the queue waiting for."""
        return self.state.kept_out

    @property
    def kv_tiers(self) -> tuple[TierResult, ...]:
        """Totals of the tiers below HBM."""
        return self.state.loads.tiers.results() if self.state.loads is not None else ()

    def add(self, request: Request) -> None:
        """Put an arriving request in the waiting queue.

        Like the engine's intake, cuts the output to reckon with to what one sequence may hold.
        """
        prompt = self._content.prompt(request)
        most_outputs = min(request.max_tokens, self._most_tokens - request.prompt_tokens)
        self.state.enqueue(Sequence(request, prompt, self._content.output_place(request), most_outputs))

    def drop(self, request: Request) -> bool:
        """Forget a request whose client gave up; False if it is not in the queue."""
        queue, loads = self.state.queue, self.state.loads
        place = next((i for i, sequence in enumerate(queue) if sequence.request.id == request.id), None)
        if place is None:
            return False
        del queue[place]
        if loads is not None:
            loads.forget(request)
        return True

    def next_batch(self, now_ns: int, lane: int = 0) -> Batch | Wait:
        """Decide the next step; a result kept back is processed first if nothing can be done without it."""
        loads = self.state.loads
        if loads is not None:
            loads.land(now_ns)
        batch = self.turn(now_ns)
        if batch is None and (self.process_late() or self.state.sent_back):
            batch = self.turn(now_ns)
        until_ns = loads.next_ns if loads is not None else None
        if batch is not None:
            batch.until_ns = until_ns
            return batch
        if not self._keep_ratio_when_idle:
            self.state.ratio.reset()
        return Wait(until_ns)

    def turn(self, now_ns: int) -> Batch | None:
        """Take one turn of the engine's loop: prefill if anything can be prefilled, else decode.

        None if there is no step for now; the next turn may find one after `process_late`.
        """
        last, self.last = self.last, Step()
        self._join(last)
        return self._prefill.attempt(self.last, now_ns) or self._decode.attempt(self.last)

    def process_late(self) -> bool:
        """Process the result that was kept back, if any; return whether there was one."""
        return self._results.settle()

    def update(self, batch: Batch, steps: int, finished: Iterable[Request], lane: int = 0) -> None:
        """Book the step decided last; with overlap keep its result until the next one is decided."""
        step, done = self.last, {request.id for request in finished}
        if self.state.loads is not None:
            for request in finished:
                self.state.loads.forget(request)
        if self._overlap:
            self._results.settle()
        if steps > 1:
            self._decode.repeat(steps - 1)
        if not self._overlap:
            self._results.book(Outcome(step, steps, done))
            return
        if steps > 1:
            self._results.book(Outcome(step, steps - 1, set()))
        self.state.unbooked = Outcome(step, 1, done)

    def settle(self, steps: int) -> None:
        """Do what `update` has done once `steps` steps (2 or more) of the run in flight have begun.

        The result kept back is processed, and the memory of those steps is taken.
        """
        self._results.settle()
        self._decode.settle(steps - 1)

    def cached_tokens(self, request: Request) -> int:
        """Return the tokens at the start of the request's prompt that are cached now; changes nothing."""
        return self.state.pool.peek(self._content.prompt(request), request.prompt_tokens - 1)

    def cached_below(self, request: Request, now_ns: int) -> dict[str, int]:
        """Return the tokens after those that the KV tiers can give now, by kind of tier."""
        loads = self.state.loads
        return {} if loads is None else loads.tokens_by_kind(request, self.cached_tokens(request), now_ns)

    # -- parts -----------------------------------------------------------------------------------------

    def _loads_from(self, tiers: TierCache | None, content: Content | None) -> Loads | None:
        """Connect the pool to tiers below it, if there are any with room."""
        if tiers is None or tiers.empty:
            return None
        pool = self.state.pool
        if content is None or not pool.cache:
            why = "prompts with content" if content is None else "the radix cache"
            raise ScenarioError(f"needs {why}", "kv_tiers")
        names = RunContent(self._text, pool.page_size)
        pool.tree.put_above(tiers, names)
        return Loads(pool, tiers, names)

    def _text(self, request: Request) -> Runs:
        """Return prompt and output of a request, the output as long as it may get."""
        output = Run(*self._content.output_place(request), request.max_tokens)
        return canonical((*self._content.prompt(request), output))

    def _join(self, last: Step) -> None:
        """Bring the running batch up to date: completed prompts come in, finished requests go out."""
        state = self.state
        if state.chunked is not None:
            self._results.cache(state.chunked, state.chunked.kv.stored)
        joining = [s for s in last.prefill if s is not last.chunked and not s.done]
        if len(joining) < len(last.prefill) or (joining and (last.decodes or not len(state.batch))):
            state.full = False
        if joining:
            state.batch.join(joining, ahead=bool(last.decodes))
        if state.batch.drop_done():
            state.full = False
        if self._overlap:
            for sequence in joining:
                state.batch.limit(sequence, max(0, sequence.request.max_tokens - sequence.outputs - 1))
