"""The scheduler of SGLang 0.5.23: prefill first, one chunked prompt at a time, retraction when memory ends.

Models the decisions of one replica without data parallelism, speculation, grammars, LoRA or hierarchical
cache. Follows the rules of SGLang 0.5.23, checked step by step against logs of the real scheduler.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from simserve.core import Batch, Chunk, Request, Wait
from simserve.errors import InvariantError, ScenarioError
from simserve.kv.radix_pool import RadixPool
from simserve.policy.base import POLICIES
from simserve.policy.sglang.admission import Admission, Verdict
from simserve.policy.sglang.content import Content, UniqueContent
from simserve.policy.sglang.order import QueueOrder
from simserve.policy.sglang.params import RETRACT_DECODE_STEPS, SglangParams
from simserve.policy.sglang.ratio import NewTokenRatio
from simserve.policy.sglang.running import Running
from simserve.policy.sglang.sequence import Sequence


class Outcome(NamedTuple):
    """A step that was run: how often, and whose last token came out of it."""

    step: Step
    steps: int
    done: set[int]


@dataclass
class Step:
    """What was decided, for booking and for whoever compares decisions."""

    prefill: list[Sequence] = field(default_factory=list)
    chunked: Sequence | None = None
    """The one of `prefill` whose prompt goes on in the next step."""
    decodes: int = 0
    retracted: list[Sequence] = field(default_factory=list)
    preempted: list[Sequence] = field(default_factory=list)


@POLICIES.register("sglang")
class SglangPolicy:
    """Decides the steps of one SGLang replica."""

    Params = SglangParams

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
    ) -> None:
        """`block_size` is SGLang's page size in tokens; `content` says what the prompts are.

        Without `content` no two requests have a token in common. `keep_ratio_when_idle` leaves out what the
        engine's event loop does outside the scheduler: it resets the new-token ratio whenever it idles.
        Raises ScenarioError for more than one lane: pipeline parallelism is not modelled.
        """
        if lanes != 1:
            raise ScenarioError(f"policy 'sglang' does not model pipeline parallelism (pp is {lanes}, allowed: 1)")
        self.params = params
        self.pool = RadixPool(
            kv_blocks * block_size,
            block_size,
            params.radix_eviction_policy,
            cache=not params.disable_radix_cache,
        )
        self.ratio = NewTokenRatio(params.schedule_conservativeness)
        self.full = False
        """Nobody is admitted until somebody leaves the running batch."""
        self.chunked: Sequence | None = None
        """The request whose prompt is in progress."""
        self.batch = Running(block_size)
        self.queue: list[Sequence] = []
        self.last = Step()
        """The step decided last."""
        self._most_tokens = max_model_len - 1 - block_size
        self._content = content or UniqueContent()
        self._keep_ratio_when_idle = keep_ratio_when_idle
        self._order = QueueOrder(params, self.pool)
        self._preempts = params.enable_priority_scheduling and not params.disable_priority_preemption
        self._overlap = not params.disable_overlap_schedule
        self._parting: dict[int, Sequence] = {}
        self._entered = 0
        self._unbooked: Outcome | None = None

    @property
    def running(self) -> int:
        """Requests that hold KV."""
        return self.batch.live + len(self._parting) + sum(not s.done for s in self.last.prefill)

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self.queue)

    @property
    def kv_used_blocks(self) -> int:
        """Pages that requests in flight hold."""
        return (self.pool.capacity - self.pool.room) // self.pool.page_size

    def add(self, request: Request) -> None:
        """Put an arriving request in the waiting queue."""
        prompt = self._content.prompt(request)
        most_outputs = min(request.max_tokens, self._most_tokens - request.prompt_tokens)
        self._enqueue(Sequence(request, prompt, self._content.output_segment(request), most_outputs))

    def next_batch(self, now_ns: int, lane: int = 0) -> Batch | Wait:
        """Decide the next step; a result not processed yet is, if nothing can be done without it."""
        batch = self._decide()
        if batch is None and self._unbooked is not None:
            self._book_late()
            batch = self._decide()
        if batch is not None:
            return batch
        if not self._keep_ratio_when_idle:
            self.ratio.reset()
        return Wait()

    def update(self, batch: Batch, steps: int, finished: Iterable[Request], lane: int = 0) -> None:
        """Book the step decided last, or, with overlap, keep it until the next one is decided."""
        step, done = self.last, {request.id for request in finished}
        if steps > 1:
            self._repeat(steps - 1)
        if not self._overlap:
            self._book(Outcome(step, steps, done))
            return
        self._book_late()
        if steps > 1:
            self._book(Outcome(step, steps - 1, set()))
        self._unbooked = Outcome(step, 1, done)

    def _decide(self) -> Batch | None:
        self._join_prefilled()
        step = Step()
        batch = self._prefill(step) or self._decode(step)
        self.last = step
        return batch

    # -- queue -----------------------------------------------------------------------------------------

    def _enqueue(self, sequence: Sequence) -> None:
        self._entered += 1
        sequence.rank = self._entered
        self.queue.append(sequence)

    # -- prefill ---------------------------------------------------------------------------------------

    def _join_prefilled(self) -> None:
        """Let the prompts that the last step completed decode from now on."""
        last, self.last = self.last, Step()
        if self.chunked is not None:
            self._cache_stored(self.chunked)
        joining = [s for s in last.prefill if s is not last.chunked and not s.done]
        if len(joining) < len(last.prefill):
            self.full = False
        if joining:
            if last.decodes or not len(self.batch):
                self.full = False
            self.batch.join(joining, ahead=bool(last.decodes))
        if self._overlap:
            self._part_limited(joining)
        if self.batch.drop_done():
            self.full = False

    def _part_limited(self, joining: list[Sequence]) -> None:
        """Take out whoever will have all its allowed output once the step in flight is booked."""
        for sequence in joining:
            self.batch.limit(sequence, max(0, sequence.request.max_tokens - sequence.outputs - 1))
        parting = self.batch.take_limited()
        if parting:
            self.full = False
        self._parting.update((s.request.id, s) for s in parting)

    def _prefill(self, step: Step) -> Batch | None:
        if self._preempts:
            self.full = False
        if self.chunked is None:
            if self.full or not self.queue:
                return None
            if self._places() <= 0 and not self._preempts:
                self.full = True
                return None
        self._order.sort(self.queue)
        admission = self._admit()
        if not admission.admitted:
            return None
        return self._prefill_batch(step, admission)

    def _places(self) -> int:
        return self.params.max_running_requests - len(self.batch)

    def _admit(self) -> Admission:
        mixed = len(self.batch) if self.params.enable_mixed_chunk else 0
        ratio = 1.0 if self.params.ignore_eos else self.ratio.value
        admission = Admission(self.params, self.pool, self.batch, ratio, mixed)
        if self.chunked is not None:
            sequence = self.chunked
            sequence.prefix = sequence.kv.stored
            sequence.extend = sequence.known - sequence.prefix
            admission.go_on(sequence)
        for sequence in self.queue:
            if len(admission.admitted) >= self._places():
                self.full = True
            if self.full and not (self._preempts and self._make_place(sequence, admission)):
                break
            node, sequence.prefix = self.pool.lookup(sequence.runs(), sequence.known - 1)
            sequence.extend = sequence.known - sequence.prefix
            verdict = admission.try_add(sequence, node)
            if verdict is not Verdict.GO_ON:
                if verdict is Verdict.NO_TOKEN:
                    self.full = True
                break
        return admission

    def _make_place(self, newcomer: Sequence, admission: Admission) -> bool:
        """Send less urgent running requests back to the queue for `newcomer`; return whether that helps."""
        wanted = newcomer.extend + newcomer.outputs_left - admission.total_left
        victims: list[Sequence] = []
        for sequence in sorted(self.batch, key=lambda s: (self._order.urgency(s), -s.rank)):
            lead = self._order.urgency(newcomer) - self._order.urgency(sequence)
            if lead <= self.params.priority_scheduling_preemption_threshold:
                break
            victims.append(sequence)
            wanted -= admission.promised_to(sequence)
            if wanted <= 0:
                break
        if not victims or wanted > 0:
            return False
        for victim in victims:
            admission.take_back(victim)
            self._release(victim, len(self.batch) - 1)
        admission.preempted += victims
        return True

    def _release(self, victim: Sequence, remaining: int) -> None:
        """Take a running request out of the batch, uncached, and make room for the `remaining` ones."""
        self.batch.remove(victim)
        victim.request.known = victim.known
        self.pool.drop(victim.kv)
        self.pool.make_room(remaining * RETRACT_DECODE_STEPS)

    def _prefill_batch(self, step: Step, admission: Admission) -> Batch:
        step.prefill = admission.admitted
        new = [s for s in admission.admitted if s is not self.chunked]
        taken = {s.request.id for s in new}
        self.queue = [s for s in self.queue if s.request.id not in taken]
        step.preempted = admission.preempted
        for victim in step.preempted:
            self._enqueue(victim)
        self.chunked = step.chunked = admission.chunked
        need = sum(self.pool.need(s.kv, s.prefix + s.extend) for s in step.prefill)
        self._take(need)
        chunks = []
        for sequence in new:
            sequence.request.cached = sequence.prefix
        for sequence in step.prefill:
            sequence.kv.stored = sequence.prefix + sequence.extend
            chunks.append(
                Chunk(sequence.request, sequence.extend, sequence.prefix, sequence is not step.chunked)
            )
        decodes, context = self._mix(step)
        return Batch(decodes, context, chunks, [s.request for s in new], [s.request for s in step.preempted], [])

    def _mix(self, step: Step) -> tuple[int, int]:
        if not self.params.enable_mixed_chunk:
            return 0, 0
        return self._launch(step)

    # -- decode ----------------------------------------------------------------------------------------

    def _decode(self, step: Step) -> Batch | None:
        if not len(self.batch):
            self.full = False
            return None
        if self.pool.make_room(self.batch.decode_need()):
            self.ratio.decay(1)
        else:
            self._retract(step)
            self.full = False
        decodes, context = self._launch(step)
        retracted = [s.request for s in step.retracted if not s.done]
        return Batch(decodes, context, [], [], retracted, [], self._repeats(), self.full and not self._preempts)

    def _launch(self, step: Step) -> tuple[int, int]:
        """Start one decode step; return its sequences and the sum of the tokens they attend."""
        if not len(self.batch):
            return 0, 0
        self._take(self.batch.decode_need())
        self.batch.launch()
        step.decodes = len(self.batch)
        return step.decodes, self.batch.kv_tokens

    def _repeats(self) -> int:
        """Return for how many steps the decode step just launched would be decided again.

        Not at all while an admission could be tried or a result is awaited that ends somebody; else while
        free memory lasts (evictions and retractions are decided one by one).
        """
        if (self.queue and (self._preempts or not self.full)) or (self._unbooked and self._unbooked.done):
            return 1
        return 1 + self.batch.steps_within(self.pool.free)

    def _repeat(self, steps: int) -> None:
        """Launch the decode step decided last for `steps` more times."""
        self._take(self.batch.decode_need(steps))
        self.batch.launch(steps)
        self.ratio.decay(steps)

    def _retract(self, step: Step) -> None:
        """Send running requests back to the queue until the next token of the others fits."""
        order = sorted(
            self.batch, key=lambda s: (-self.batch.outputs(s), s.request.prompt_tokens)
        )
        while len(order) > 1 and (not step.retracted or not self.pool.make_room(self.batch.decode_need())):
            victim = order.pop()
            self._release(victim, len(order))
            step.retracted.append(victim)
        if not self.pool.make_room(self.batch.decode_need()):
            raise InvariantError(f"request {order[0].request.id} alone does not fit in the KV pool")
        self.batch.reorder(order)
        self.ratio.reset_after_retraction(
            sum(self.batch.outputs(s) for s in order), sum(s.request.max_tokens for s in order), len(order)
        )
        for victim in step.retracted:
            self._enqueue(victim)

    # -- results ---------------------------------------------------------------------------------------

    def _book_late(self) -> None:
        if self._unbooked is not None:
            late, self._unbooked = self._unbooked, None
            self._book(late)

    def _book(self, outcome: Outcome) -> None:
        step, steps, done = outcome
        for sequence in step.prefill:
            if sequence is not step.chunked:
                self._book_prompt(sequence, sequence.request.id in done)
        if step.decodes:
            self.batch.book(steps)
            for sequence in self._ending(done):
                self._finish(sequence)

    def _ending(self, done: set[int]) -> list[Sequence]:
        """Return, in batch order, the decoding sequences whose last token is booked now."""
        ending = []
        for request_id in done:
            parting = self._parting.pop(request_id, None)
            if parting:
                parting.outputs += 1
            sequence = parting or self.batch.get(request_id)
            if sequence and not sequence.done:
                ending.append(sequence)
        return sorted(ending, key=lambda s: s.slot)

    def _book_prompt(self, sequence: Sequence, done: bool) -> None:
        tokens = sequence.known
        if sequence in self.batch:
            self.batch.first_output(sequence)
        else:
            sequence.outputs += 1
        if done:
            self._finish(sequence)
        else:
            self._cache(sequence, tokens)

    def _finish(self, sequence: Sequence) -> None:
        if sequence in self.batch:
            self.batch.finish(sequence)
        sequence.done = True
        self.pool.cache_finished(
            sequence.kv,
            sequence.runs(),
            min(sequence.known, sequence.kv.stored),
            sequence.request.priority,
        )

    def _cache_stored(self, sequence: Sequence) -> None:
        self._cache(sequence, sequence.kv.stored)

    def _cache(self, sequence: Sequence, tokens: int) -> None:
        self.pool.cache_prompt(sequence.kv, sequence.runs(), tokens, sequence.request.priority)
        if tokens > sequence.request.prompt_tokens: self.pool.tree.match(sequence.runs(), sequence.request.prompt_tokens)

    def _take(self, tokens: int) -> None:
        if not self.pool.make_room(tokens):
            raise InvariantError(f"{tokens} KV tokens wanted, {self.pool.free} free")
        self.pool.free -= tokens
