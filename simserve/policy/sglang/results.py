"""What the SGLang scheduler does with a step's result: tokens become known, prompts and answers are cached.

With overlap a result is processed one step late, after the next step was chosen. By then a request may have
been sent back to the queue: its token is dropped.
"""

from __future__ import annotations

from simserve.policy.sglang.sequence import Sequence
from simserve.policy.sglang.state import Outcome, State


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
