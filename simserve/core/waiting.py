"""Why a request waits: what keeps the head of a scheduler's queue out of the running batch."""

from __future__ import annotations

from enum import IntEnum


class WaitReason(IntEnum):
    """What the head of the queue waits for, as the scheduler's last decision left it.

    Values are places in lists of times (`ReplicaResult.waited_ns`).
    """

    STEP = 0
    """Nothing but the end of the step in flight: the next decision looks at it."""
    BLOCKS = 1
    """KV blocks: its prompt, or what the engine keeps in reserve for its answer, does not fit."""
    SLOTS = 2
    """A place in the running batch (vLLM: max_num_seqs; SGLang: max_running_requests)."""
    TOKENS = 3
    """The token budget of the steps, which those ahead of it use up."""
    TRANSFER = 4
    """KV on its way: from another replica or a tier below HBM, or computed prompts that were not read yet."""
    PACE = 5
    """The scheduler's own choice to wait: for company, or for the interval between prefills."""
    BATCH = 6
    """The end of the whole batch in progress, which nobody may join (request-level batching)."""
    DECODE = 7
    """Room on the decoding side of a split: computed prompts hold the KV blocks until they are read."""

    @property
    def words(self) -> str:
        """The reason as reports say it."""
        return _WORDS[self]


_WORDS = (
    "the step in flight",
    "KV blocks",
    "scheduler slots",
    "the token budget",
    "KV transfer",
    "the scheduler's pacing",
    "the batch in progress",
    "room on the decoding side",
)
