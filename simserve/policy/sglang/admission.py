"""Who joins the next prefill step: SGLang's prefill budget and its admission tests.

Follows the rules of SGLang 0.5.23: the queue is walked in order, the first request that fails ends the walk,
and at most one prompt is cut to the chunk budget.
"""

from __future__ import annotations

from enum import Enum

from simserve.kv.radix import Node
from simserve.policy.sglang.params import CLIP_MAX_NEW_TOKENS
from simserve.policy.sglang.sequence import Sequence
from simserve.policy.sglang.state import State


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
        if self._chunk_left is None and extend >= self._input_left and self.admitted:
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
