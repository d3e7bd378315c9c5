"""A request while it is alive inside the system, as a scheduler sees it.

The true output length is deliberately absent: a real scheduler does not know it. Only the replica,
which plays the model, looks it up (see `engine.outputs`).
"""

from __future__ import annotations


class Request:
    """One request in flight.

    The first block is set at arrival and never changes. The second belongs to the policy of the replica
    that holds the request; nobody else writes it.
    """

    __slots__ = (
        "arrival_ns",
        "cached",
        "computed",
        "decoding",
        "id",
        "joined_step",
        "known",
        "max_tokens",
        "priority",
        "prompt_tokens",
    )

    def __init__(
        self, id: int, arrival_ns: int, prompt_tokens: int, max_tokens: int, priority: int = 0
    ) -> None:
        """`id` is the row in the trace; `max_tokens` the most output tokens that the client allows."""
        self.id = id
        self.arrival_ns = arrival_ns
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens
        self.priority = priority
        self.known = prompt_tokens
        """Tokens known so far: the prompt, and after a preemption the output already produced."""
        self.computed = 0
        """Tokens whose KV is computed (for a decoding request: as of `joined_step`)."""
        self.cached = 0
        """Tokens found in the prefix cache at the last admission."""
        self.decoding = False
        self.joined_step = 0
        """Decode step of its group at which `computed` was true."""

    def __repr__(self) -> str:
        return f"Request({self.id}, prompt={self.prompt_tokens}, computed={self.computed})"
