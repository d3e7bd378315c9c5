"""The decode step of SGLang 0.5.23: one token for every running request, and retraction when memory ends."""

from __future__ import annotations

from simserve.core import Batch, WaitReason
from simserve.engines.sglang.sequence import Sequence
from simserve.engines.sglang.state import Outcome, State, Step
from simserve.errors import InvariantError

# What the SGLang scheduler does with a step's result: tokens become known, prompts and answers are cached.
#
# With overlap a result is processed one step late, after the next step was chosen. By then a request may have
# been sent back to the queue: its token is dropped.


class Results:
    """Books the outcomes of steps."""

    def __init__(self, state: State) -> None:
        self._state = state

    def settle(self) -> bool:
        """Book the result that was kept back, if any; return whether there was one."""
        late, self._state.unbooked = self._state.unbooked, None
        if late is not None:
            self.book(late)
        return late is not None

    def book(self, outcome: Outcome) -> None:
        """Book a result, in the order of its batch: prompts first, then decodes."""
        step, steps, done = outcome
        for sequence in step.prefill:
            if sequence is not step.chunked and not sequence.waiting:
                self._prompt(sequence, sequence.request.id in done)
        if step.decodes:
            self._state.batch.book(steps)
            for sequence in self._ending(done):
                self._finish(sequence)

    def cache(self, sequence: Sequence, tokens: int) -> None:
        """Cache the first `tokens` tokens of a request that goes on."""
        request = sequence.request
        self._state.pool.cache_prompt(
            sequence.kv, sequence.runs(), tokens, request.prompt_tokens, request.priority
        )

    def _prompt(self, sequence: Sequence, done: bool) -> None:
        """Book a completed prompt and the token that it sampled."""
        computed = sequence.known
        if sequence in self._state.batch:
            self._state.batch.first_output(sequence)
        else:
            sequence.outputs += 1
        if done:
            self._finish(sequence)
        else:
            self.cache(sequence, computed)

    def _ending(self, done: set[int]) -> list[Sequence]:
        """Return, in batch order, the decoding sequences whose last token is booked now."""
        ending = []
        for request_id in done:
            parting = self._state.parting.pop(request_id, None)
            if parting is not None:
                parting.outputs += 1
            sequence = parting or self._state.batch.get(request_id)
            if sequence is not None and not sequence.done:
                ending.append(sequence)
        return sorted(ending, key=lambda s: s.slot)

    def _finish(self, sequence: Sequence) -> None:
        """Cache prompt and answer (as far as their KV exists) and let the request go."""
        if sequence in self._state.batch:
            self._state.batch.finish(sequence)
        request = sequence.request
        self._state.parting.pop(request.id, None)
        sequence.done = True
        tokens = min(sequence.known, sequence.kv.stored)
        self._state.pool.cache_finished(
            sequence.kv, sequence.runs(), tokens, request.prompt_tokens, request.priority
        )


class Decode:
    """Decides decode steps."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._taken_ahead = 0

    def attempt(self, step: Step) -> Batch | None:
        """Decide a decode step, or return None if nobody runs.

        None also if memory is short and a result is awaited that ends somebody: it makes room.
        """
        state, batch = self._state, self._state.batch
        parted = state.part()
        if not len(batch):
            state.full = False
            return None
        if state.make_room(batch.decode_need()):
            state.ratio.decay(1)
        elif parted:
            return None
        else:
            self._retract(step)
        decodes, context = self.launch(step)
        return Batch(
            decodes,
            context,
            chunks=[],
            admitted=[],
            preempted=state.told(),
            stalled=[],
            repeats=self._repeats(),
            sealed=state.full and not state.preempts,
        )

    def beside_prefill(self, step: Step) -> tuple[int, int]:
        """Let the batch decode in a prefill step, as `launch` does; it sits out if memory is short."""
        state = self._state
        state.part()
        return self.launch(step) if state.make_room(state.batch.decode_need()) else (0, 0)

    def launch(self, step: Step) -> tuple[int, int]:
        """Start one decode step; return its sequences and the sum of the tokens they attend."""
        batch, page_size = self._state.batch, self._state.pool.page_size
        if not len(batch):
            return 0, 0
        self._state.take(batch.decode_need(), len(batch) * page_size)
        batch.launch()
        step.decodes = len(batch)
        return step.decodes, batch.kv_tokens

    def repeat(self, steps: int) -> None:
        """Launch the decode step decided last for `steps` more times."""
        state = self._state
        state.take(state.batch.decode_need(steps) - self._taken_ahead)
        self._taken_ahead = 0
        state.batch.launch(steps)
        state.ratio.decay(steps)

    def settle(self, steps: int) -> None:
        """Take the memory of `steps` more launches now, instead of in `repeat`."""
        ahead = self._state.batch.decode_need(steps)
        self._state.take(ahead - self._taken_ahead)
        self._taken_ahead = ahead

    def _repeats(self) -> int:
        """Return for how many steps the decode step just launched would be decided.

        Once while an admission could be tried or a result is awaited that ends somebody; else while free
        memory lasts: a step that evicts or retracts is decided on its own.
        """
        state = self._state
        may_admit = bool(state.queue) and (state.preempts or not state.full)
        late = state.unbooked
        if may_admit or (late is not None and (late.done or (state.loads is not None and late.step.prefill))):
            return 1
        return 1 + self._steps_without_eviction()

    def _steps_without_eviction(self) -> int:
        """Return how many decode steps can follow that find all the free memory they ask for.

        With pages of several tokens a step asks for a page of every sequence.
        """
        batch, pool = self._state.batch, self._state.pool
        if pool.page_size == 1 or not pool.tree.evictable:
            return batch.steps_within(pool.free)
        spare = pool.free - len(batch) * pool.page_size
        return 1 + batch.steps_within(spare) if spare >= 0 else 0

    def _retract(self, step: Step) -> None:
        """Send running requests back to the queue until the next token of the others fits.

        Those with the fewest outputs go first, among them those with the longest prompt, then the later in
        the batch. The others stay in that order, and the new-token ratio is set from them.
        """
        state, batch = self._state, self._state.batch
        order = sorted(batch, key=lambda s: (-batch.outputs(s), s.request.prompt_tokens))
        while len(order) > 1 and not (step.retracted and state.pool.make_room(batch.decode_need())):
            victim = order.pop()
            state.send_back(victim, len(order))
            step.retracted.append(victim)
        if not state.pool.make_room(batch.decode_need()):
            raise InvariantError(f"request {order[0].request.id} alone does not fit in the KV pool")
        batch.reorder(order)
        outputs, most_outputs = sum(map(batch.outputs, order)), sum(s.most_outputs for s in order)
        state.ratio.reset_after_retraction(outputs, most_outputs, len(order))
        state.requeue(step.retracted)
        state.full, state.kept_out = False, WaitReason.BLOCKS
