"""The prefill step of SGLang 0.5.23: who of the queue is admitted, and who has to make place.

The queue is walked in the order of the schedule policy. The first request that does not fit ends the walk;
if it was memory that ran out, nobody is tried again until somebody leaves. With priorities a request that
finds every place taken may send less urgent running requests back to the queue.
"""

from __future__ import annotations

from enum import Enum

from simserve.core import Batch, Chunk, WaitReason
from simserve.engines.sglang.decode import Decode
from simserve.engines.sglang.kv_loads import Loads
from simserve.engines.sglang.options import CLIP_MAX_NEW_TOKENS
from simserve.engines.sglang.order import QueueOrder
from simserve.engines.sglang.sequence import Sequence
from simserve.engines.sglang.state import State, Step
from simserve.errors import ScenarioError
from simserve.kvcache.radix import Node
from simserve.units import NS_PER_S

# Who joins the next prefill step: SGLang's prefill budget and its admission tests.
#
# Follows the rules of SGLang 0.5.23: the queue is walked in order, the first request that fails ends the
# walk,
# and at most one prompt is cut to the chunk budget.


class Verdict(Enum):
    """What the walk does after a request."""

    GO_ON = 0
    NO_TOKEN = 1
    """Memory is spent: the batch is full until somebody leaves."""
    STOP = 2
    """A budget of this step is spent."""


class Admission:
    """The prefill step under construction."""

    def __init__(self, state: State, mixed: int) -> None:
        """`mixed` decoding sequences share the step and its budgets."""
        params = state.params
        self._params = params
        self._pool = state.pool
        self._running = state.batch
        self._ratio = 1.0 if params.ignore_eos else state.ratio.value
        self._input_left = params.max_prefill_tokens - mixed
        self._chunk_left = params.chunked_prefill_size - mixed if params.chunked_prefill_size > 0 else None
        self._whole_only = self._chunk_left is None or params.prompts_within_max_prefill
        self._taken = mixed
        loading = state.loads.reserved if state.loads is not None else 0
        self._promised = mixed + state.batch.reserved * self._ratio + loading
        self.admitted: list[Sequence] = []
        self.preempted: list[Sequence] = []
        self.chunked: Sequence | None = None
        """The one of `admitted` whose prompt was cut."""

    @property
    def total_left(self) -> float:
        """Tokens of memory that are neither taken nor promised."""
        return self._pool.room - self._promised

    def outputs_reserved(self, outputs: int) -> int:
        """Return the tokens reserved for `outputs` output tokens."""
        return min(outputs, CLIP_MAX_NEW_TOKENS)

    @property
    def budget_spent(self) -> bool:
        """Whether memory is left, but none of this step's budgets: nobody need be tried."""
        return self._has_memory and self._step_spent

    def promised_to(self, sequence: Sequence) -> float:
        """Return the tokens reserved for the output of a running request."""
        left = sequence.most_outputs - self._running.outputs(sequence)
        return self.outputs_reserved(left) * self._ratio

    def take_back(self, sequence: Sequence) -> None:
        """Give up what was reserved for a running request."""
        self._promised -= self.promised_to(sequence)

    def go_on(self, sequence: Sequence) -> None:
        """Take the prompt in progress on; it always gets a place."""
        limit = sequence.extend if self._chunk_left is None else min(self._chunk_left, int(self.total_left))
        if limit <= 0 and self._chunk_left is not None:
            limit = self._chunk_left
        cut = sequence.extend > limit
        sequence.extend = min(sequence.extend, limit)
        self._take(sequence, 0 if cut else self.outputs_reserved(sequence.most_outputs))
        if cut:
            self.chunked = sequence

    def wanted(self, sequence: Sequence) -> int:
        """Return the tokens that a waiting request would take and reserve."""
        return sequence.extend + self.outputs_reserved(sequence.outputs_left) + self._pool.page_size

    def reserve(self, tokens: float) -> None:
        """Promise tokens to a request that loads, or (below 0) take back what was promised to one."""
        self._promised += tokens

    @property
    def left_for_loads(self) -> float:
        """Tokens that neither the admitted nor the rest of the prompt in progress will need."""
        rest = self.chunked.known - self.chunked.prefix - self.chunked.extend if self.chunked else 0
        return self.total_left - self._pool.paged(rest)

    def try_add(self, sequence: Sequence, node: Node | None) -> Verdict:
        """Admit a waiting request, if it fits; its `prefix` tokens are cached and end at `node`."""
        if self._params.ignore_eos and self._params.disable_radix_cache:
            return self._try_add_known_lengths(sequence)
        wanted = self.wanted(sequence)
        extend = self._pool.paged(sequence.extend)
        if wanted >= self.total_left:
            return Verdict.NO_TOKEN
        if self._whole_only and extend >= self._input_left and self.admitted:
            return Verdict.STOP
        self._pool.hold(sequence.kv, node, sequence.prefix)
        verdict = Verdict.NO_TOKEN if wanted >= self.total_left else self._admit(sequence)
        if self.admitted[-1:] != [sequence]:
            self._pool.drop(sequence.kv)
        return verdict

    def _try_add_known_lengths(self, sequence: Sequence) -> Verdict:
        """Admit by playing the releases forward: every request is taken to use all its output tokens."""
        extend = self._pool.paged(sequence.extend)
        room = self._pool.room - self._taken
        if extend > min(room, self.total_left) or not self._lasts(sequence, room - extend):
            return Verdict.NO_TOKEN
        return self._admit(sequence)

    def _lasts(self, newcomer: Sequence, free: int) -> bool:
        """Return whether `free` tokens last until everybody, ended in turn, has given back its own."""
        ends = [(newcomer.outputs_left, newcomer.known)]
        ends += [(s.outputs_left, s.known) for s in self.admitted]
        for sequence in self._running:
            outputs = self._running.outputs(sequence)
            ends.append((sequence.most_outputs - outputs, sequence.request.prompt_tokens + outputs))
        alive = len(ends)
        for steps, held in sorted(ends):
            if free - steps * alive <= alive:
                return False
            free += held
            alive -= 1
        return True

    def _admit(self, sequence: Sequence) -> Verdict:
        """Take a request that memory allows, whole or cut to the chunk budget."""
        if self._chunk_left is None or self._pool.paged(sequence.extend) <= self._chunk_left:
            self._take(sequence, self.outputs_reserved(sequence.most_outputs))
            return self._verdict()
        end = sequence.prefix + self._chunk_left
        cut = self._chunk_left - end % self._pool.page_size
        if cut <= 0:
            return Verdict.STOP
        sequence.extend = cut
        self._take(sequence, 0)
        self.chunked = sequence
        return self._verdict()

    def _take(self, sequence: Sequence, outputs: int) -> None:
        extend = self._pool.paged(sequence.extend)
        self.admitted.append(sequence)
        self._promised += extend + outputs + self._pool.page_size
        self._taken += extend + self._pool.page_size
        self._input_left -= extend
        if self._chunk_left is not None:
            self._chunk_left -= extend

    def _verdict(self) -> Verdict:
        if not self._has_memory:
            return Verdict.NO_TOKEN
        return Verdict.STOP if self._step_spent else Verdict.GO_ON

    @property
    def _has_memory(self) -> bool:
        return self.total_left > 0 and self._pool.room > self._taken

    @property
    def _step_spent(self) -> bool:
        return self._input_left <= 0 or (self._chunk_left is not None and self._chunk_left <= 0)


class Prefill:
    """Decides prefill steps."""

    def __init__(self, state: State, decode: Decode, shared_content: bool) -> None:
        """`shared_content`: two requests may have tokens in common."""
        self._state = state
        self._decode = decode
        self._params = state.params
        self._order = QueueOrder(state.params, state.pool, shared_content)

    def attempt(self, step: Step, now_ns: int) -> Batch | None:
        """Decide a prefill step, or return None if nobody can be admitted and no prompt is in progress."""
        state = self._state
        if state.preempts or not len(state.batch):
            state.full = False
        if state.chunked is None:
            if state.full:
                return None
            if not state.queue:
                state.kept_out = WaitReason.STEP
                return None
            if self._places() <= 0 and not state.preempts:
                state.full, state.kept_out = True, WaitReason.SLOTS
                return None
        self._order.sort(state.queue)
        admission = self._admit(now_ns)
        step.preempted = admission.preempted
        new = admission.admitted[state.chunked is not None :]
        if state.loads is None:
            del state.queue[: len(new)]
        elif new:
            gone = {sequence.request.id for sequence in new}
            state.queue = [sequence for sequence in state.queue if sequence.request.id not in gone]
        state.requeue(admission.preempted)
        if not admission.admitted:
            return None
        state.chunked = step.chunked = admission.chunked
        step.prefill = admission.admitted
        return self._batch(step, new, now_ns)

    def _places(self) -> int:
        return self._params.max_running_requests - len(self._state.batch)

    def _admit(self, now_ns: int) -> Admission:
        """Walk the queue; without tiers below HBM whoever is admitted is its beginning."""
        state, params, loads = self._state, self._params, self._state.loads
        admission = Admission(state, mixed=len(state.batch) if params.enable_mixed_chunk else 0)
        if state.chunked is not None:
            state.chunked.plan(state.chunked.kv.stored)
            admission.go_on(state.chunked)
        if not state.full:
            loading = loads is not None and loads.next_ns is not None
            state.kept_out = WaitReason.TRANSFER if loading else WaitReason.STEP
        if admission.budget_spent:
            if state.queue and not state.full:
                state.kept_out = WaitReason.TOKENS
            return admission
        for sequence in state.queue if loads is None else loads.order(state.queue):
            if len(admission.admitted) >= self._places():
                state.full, state.kept_out = True, WaitReason.SLOTS
            if state.full and not (state.preempts and self._make_place(sequence, admission)):
                break
            node, cached = state.pool.lookup(sequence.runs(), sequence.known - 1)
            sequence.plan(cached)
            if loads is None:
                verdict = admission.try_add(sequence, node)
            else:
                verdict = self._try_with_tiers(loads, admission, sequence, node, now_ns)
            if verdict is Verdict.NO_TOKEN:
                state.full, state.kept_out = True, WaitReason.BLOCKS
            elif verdict is Verdict.STOP:
                state.kept_out = WaitReason.TOKENS
            if verdict is not Verdict.GO_ON:
                break
        return admission

    def _try_with_tiers(
        self, loads: Loads, admission: Admission, sequence: Sequence, node: Node | None, now_ns: int
    ) -> Verdict:
        """Admit a request, or let it load what a tier has of its prompt, or wait for another's load."""
        rest = loads.rest_of(sequence)
        if not rest:
            if loads.waits(sequence):
                return Verdict.GO_ON
            plan = loads.plan(sequence, now_ns)
            if plan.blocks:
                wanted = admission.wanted(sequence)
                holding = loads.hold(sequence, node)
                if wanted >= admission.left_for_loads:
                    loads.let_go(holding)
                    return Verdict.NO_TOKEN
                loads.start(sequence, holding, plan, wanted, now_ns)
                self._state.kept_out = WaitReason.TRANSFER
                admission.reserve(loads.rest_of(sequence))
                return Verdict.GO_ON
        admission.reserve(-rest)
        verdict = admission.try_add(sequence, node)
        if admission.admitted[-1:] == [sequence]:
            loads.admitted(sequence)
        else:
            admission.reserve(rest)
        return verdict

    def _make_place(self, newcomer: Sequence, admission: Admission) -> bool:
        """Send less urgent running requests back for `newcomer`, if that helps; return whether it did."""
        batch, urgency = self._state.batch, self._order.urgency
        missing = newcomer.extend + admission.outputs_reserved(newcomer.most_outputs) - admission.total_left
        victims: list[Sequence] = []
        for sequence in sorted(batch, key=lambda s: (urgency(s), -s.rank)):
            lead = urgency(newcomer) - urgency(sequence)
            if lead <= self._params.priority_scheduling_preemption_threshold:
                break
            victims.append(sequence)
            missing -= admission.promised_to(sequence)
            if missing <= 0:
                break
        if not victims or missing > 0:
            return False
        victims.sort(key=lambda s: s.slot)
        for victim in victims:
            admission.take_back(victim)
            self._state.send_back(victim, len(batch) - 1)
        admission.preempted += victims
        return True

    def _batch(self, step: Step, new: list[Sequence], now_ns: int) -> Batch:
        """Take the memory of the admitted and describe the step.

        Raises ScenarioError where the server ends: a prompt in progress goes on, but running requests that
        little was reserved for have taken the memory (`alloc_for_extend` in `mem_cache/allocation.py`).
        """
        state = self._state
        pool, batch = state.pool, step.prefill
        need = sum(pool.need(s.kv, s.prefix + s.extend) for s in batch)
        if not state.make_room(need):
            raise ScenarioError(
                f"SGLang's server ends {now_ns / NS_PER_S:.3f} s into the run with 'Prefill out of memory': "
                f"the prompt of request {batch[0].request.id} goes on with {batch[0].extend:,} tokens, "
                f"{pool.free:,} are free, and {len(state.batch):,} running requests hold the rest; raise "
                f"schedule_conservativeness (here {self._params.schedule_conservativeness:g} a rank), or "
                "give the KV cache more memory"
            )
        state.take(need, sum(s.extend for s in batch) + len(batch) * pool.page_size)
        for sequence in new:
            sequence.waiting = False
            sequence.request.cached = sequence.prefix
        for sequence in step.prefill:
            sequence.kv.stored = sequence.prefix + sequence.extend
        decodes, context = self._decode.beside_prefill(step) if self._params.enable_mixed_chunk else (0, 0)
        return Batch(
            decodes,
            context,
            chunks=[Chunk(s.request, s.extend, s.prefix, s is not step.chunked) for s in step.prefill],
            admitted=[s.request for s in new],
            preempted=state.told(),
            stalled=[],
        )
