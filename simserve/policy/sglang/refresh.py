"""Every 64 decode steps SGLang 0.5.23 looks up the prompts of all waiting and running requests.

Found in step-by-step logs of the engine, not in a description of it: what is cached of those prompts counts
as used just then, and a prompt whose output was computed again after a retraction gets a node of its own.
(The logs agree with 64 and with 32 decode steps and with no other number; three events that only one
multiple can explain fall on multiples of 64.)

Only lookups that can matter are made. A running request's prompt is locked, and its end refreshes it; so it
matters only if the request is sent back to the queue, and is then made up for. Where no two requests share
a token, a waiting request's prompt is cached only if the request was sent back.
"""

from __future__ import annotations

from simserve.policy.decodes import FOREVER
from simserve.policy.sglang.sequence import Sequence
from simserve.policy.sglang.state import State

LOOKUP_INTERVAL = 64
"""Decode steps between two lookups of all prompts."""


class Refresh:
    """Counts decode steps and keeps the cached prompts of requests in the system fresh."""

    def __init__(self, state: State, shared_content: bool) -> None:
        """`shared_content`: two requests may have tokens in common."""
        self._state = state
        self._shared_content = shared_content
        self._steps = 0

    def step(self) -> None:
        """Count a decode step that is about to be decided."""
        self._steps += 1
        if self._steps % LOOKUP_INTERVAL == 0 and self._state.pool.cache:
            self._look_up()

    def skip(self, steps: int) -> None:
        """Count `steps` decode steps of which none looks anybody up now (see `steps_before_lookup`)."""
        self._steps += steps
        if self._steps % LOOKUP_INTERVAL < steps and self._state.pool.cache:
            self._state.note_refresh(1 + self._steps % LOOKUP_INTERVAL)

    def steps_before_lookup(self) -> int:
        """Return how many decode steps can follow until a lookup that must not be left out."""
        if not self._waiting() and not self._state.returned:
            return FOREVER
        return LOOKUP_INTERVAL - 1 - self._steps % LOOKUP_INTERVAL

    def _look_up(self) -> None:
        state = self._state
        sequences = list(self._waiting())
        if state.returned:
            sequences += [sequence for sequence in state.batch if sequence.returned]
        for sequence in sequences:
            state.pool.lookup(sequence.runs(), sequence.request.prompt_tokens)
        state.note_refresh(0)

    def _waiting(self) -> list[Sequence]:
        """Return the waiting requests of whose prompt something may be cached, in queue order."""
        if not self._state.pool.cache:
            return []
        if self._shared_content:
            return self._state.queue
        if not self._state.returned:
            return []
        return [sequence for sequence in self._state.queue if sequence.returned]
