"""What a policy decides: the work of one engine step, or how long to wait."""

from __future__ import annotations

from typing import NamedTuple

from simserve.core.request import Request


class Chunk(NamedTuple):
    """Prompt tokens of one request that are computed in a step."""

    request: Request
    tokens: int
    """New tokens computed (padding included, where a policy pads)."""
    cached: int
    """Tokens of the request whose KV already exists."""
    last: bool
    """True if the step completes the prompt and therefore samples a token."""


class Batch:
    """The work of one step, and how often it may be repeated.

    The decoding sequences are given as two numbers, never as a list: a step must cost what changed in it.
    """

    __slots__ = (
        "admitted",
        "chunks",
        "decode_context",
        "decodes",
        "preempted",
        "repeats",
        "sealed",
        "stalled",
        "until_ns",
    )

    def __init__(
        self,
        decodes: int,
        decode_context: int,
        chunks: list[Chunk],
        admitted: list[Request],
        preempted: list[Request],
        stalled: list[Request],
        repeats: int = 1,
        sealed: bool = False,
        until_ns: int | None = None,
    ) -> None:
        """See the attributes' notes."""
        self.decodes = decodes
        """Sequences that compute one token each (padding included)."""
        self.decode_context = decode_context
        """Sum over those sequences of the tokens attended, the new one included."""
        self.chunks = chunks
        self.admitted = admitted
        """Requests that leave the waiting queue in this step."""
        self.preempted = preempted
        """Requests whose KV was freed before this step; they wait again and will be recomputed."""
        self.stalled = stalled
        """Decoding requests that get no token in this step although they keep running."""
        self.repeats = repeats
        """For how many steps in a row the policy would decide just this, if nobody arrives or finishes."""
        self.sealed = sealed
        """True if no arrival could change the decision while the batch is repeated."""
        self.until_ns = until_ns
        """When something happens that the policy foresees: no step is repeated at or after this time."""

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens computed in one step."""
        return sum([chunk.tokens for chunk in self.chunks])

    @property
    def tokens(self) -> int:
        """Tokens computed in one step."""
        return self.decodes + self.prompt_tokens


class Wait(NamedTuple):
    """Nothing to compute: look again at `until_ns`, or at the next arrival if that comes first."""

    until_ns: int | None = None
