"""What a policy decides: the work of one engine step, or how long to wait."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simserve.core.request import Acceptance, Request


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
        self.until_ns: int | None = None
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


# Steps that verify drafted tokens: what a speculating scheduler says beyond an ordinary batch.

Int64 = NDArray[np.int64]


class Drafting(NamedTuple):
    """How a replica speculates, as its scheduler needs to know it."""

    acceptance: Acceptance
    """Plays the model: what each verification accepts. A scheduler hears of it when the step is over."""
    lookahead: int
    """KV slots held beyond the scheduled tokens, in which the next drafts are written."""
    drops_hit: bool
    """True if the last block of a prefix-cache hit is computed again: the draft needs its hidden states."""
    lookahead_at_admission: bool = True
    """False: these slots are held from the second step of a request on."""
    rows: int = 0
    """Tokens that drafting adds to the input of each scheduled request; they count against the budget."""

    @property
    def width(self) -> int:
        """Tokens that a decoding sequence asks for in a step: its last token and the drafts."""
        return self.acceptance.drafts + 1


class VerifyBatch(Batch):
    """A batch whose `decodes` sequences verify drafts: each computes several tokens and keeps some.

    `decode_context` counts all of a sequence's tokens, the drafts included.
    """

    __slots__ = ("context_sums", "cut", "trimmed")

    def __init__(self, batch: Batch, decodes: int, context_sums: Int64, trimmed: dict[int, int]) -> None:
        """Take over `batch`; see the attributes' notes."""
        super().__init__(
            decodes,
            int(context_sums[0]) if decodes else 0,
            batch.chunks,
            batch.admitted,
            batch.preempted,
            batch.stalled,
            batch.repeats,
            batch.sealed,
        )
        self.until_ns = batch.until_ns
        self.context_sums = context_sums
        """`decode_context` of each of the `repeats` steps, as the acceptances draw it (int64[repeats])."""
        self.trimmed = trimmed
        """Tokens given to sequences that get fewer than the others, by request id; they are in `stalled`,
        for they take part in this step on terms of their own."""
        self.cut: dict[int, int] = {}
        """Accepted tokens beyond the end of answers that ended in the step, by request id: filled in by the
        engine before it tells the scheduler who ended."""
