"""The prefill step of SGLang 0.5.23: who of the queue is admitted, and who has to make place.

The queue is walked in the order of the schedule policy. The first request that does not fit ends the walk;
if it was memory that ran out, nobody is tried again until somebody leaves. With priorities a request that
finds every place taken may send less urgent running requests back to the queue.
"""

from __future__ import annotations

from simserve.core import Batch, Chunk, WaitReason
from simserve.errors import ScenarioError
from simserve.kv.radix import Node
from simserve.policy.sglang.admission import Admission, Verdict
from simserve.policy.sglang.decode import Decode
from simserve.policy.sglang.loads import Loads
from simserve.policy.sglang.order import QueueOrder
from simserve.policy.sglang.sequence import Sequence
from simserve.policy.sglang.state import State, Step
from simserve.units import NS_PER_S


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
