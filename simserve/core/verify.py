"""Steps that verify drafted tokens: what a speculating scheduler says beyond an ordinary batch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simserve.core.acceptance import Acceptance
from simserve.core.batch import Batch

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
            batch.until_ns,
        )
        self.context_sums = context_sums
        """`decode_context` of each of the `repeats` steps, as the acceptances draw it (int64[repeats])."""
        self.trimmed = trimmed
        """Tokens given to sequences that get fewer than the others, by request id; they are in `stalled`,
        for they take part in this step on terms of their own."""
        self.cut: dict[int, int] = {}
        """Accepted tokens beyond the end of answers that ended in the step, by request id: filled in by the
        engine before it tells the scheduler who ended."""
