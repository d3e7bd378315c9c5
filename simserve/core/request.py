"""A request while it is alive inside the system, as a scheduler sees it.

The true output length is deliberately absent: a real scheduler does not know it. Only the replica,
which plays the model, looks it up (see `engine.outputs`).
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from simserve.errors import ScenarioError


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


# The two halves of a request that is split: its prompt on one replica, its answer on another.
#
# Both have the row of the whole request as id. What a prefill/decode split adds to a scheduler's life is told
# apart by these types, so that whole requests cost nothing more.


class PrefillRequest(Request):
    """The prompt: it ends with one token, and its KV stays where it is until somebody has read it."""

    __slots__ = ()


class DecodeRequest(Request):
    """The answer: the KV of its prompt comes from elsewhere."""

    __slots__ = ()


class KvMoved(NamedTuple):
    """News for a scheduler, given to its `add` like an arrival: the KV of a prompt was read, or has come."""

    request: Request
    ok: bool = True
    """False: it is lost. The decoding side must compute the prompt itself."""
    dropped: bool = False
    """True (and not ok): the request has failed; the decoding side forgets it."""


# How many drafted tokens a verification accepts: drawn per request and step, whatever else happens.
#
# A counter-based generator: the draw is a hash of (seed, request, step), so neither the order of events nor
# fast-forward nor preemption can change it. Tokens per step: 1 + sum over i of p_1 ... p_i (Leviathan, 2023).

Int64 = NDArray[np.int64]
UInt64 = NDArray[np.uint64]


class Acceptance:
    """Tokens that each step of each request yields."""

    def __init__(self, probabilities: tuple[float, ...], seed: int = 0) -> None:
        """`probabilities`: chance that draft j is accepted if all before it were, one per drafted token."""
        if not probabilities or not all(0 <= p <= 1 for p in probabilities):
            found = list(probabilities)
            raise ScenarioError(f"acceptance: {found}, allowed: one or more numbers from 0 to 1")
        self.probabilities = tuple(probabilities)
        self.drafts = len(probabilities)
        self._reached = np.cumprod(np.array(probabilities, np.float64))[::-1]
        """Chance that draft j and all before it are accepted, the last draft first: ascending."""
        self._seed = np.uint64(seed)

    @property
    def mean_tokens(self) -> float:
        """Tokens per step in the mean."""
        return 1.0 + float(self._reached.sum())

    def tokens(self, requests: Int64, steps: Int64) -> Int64:
        """Return the tokens of step number `steps` of each request (int64, broadcast): 1 to 1 + drafts."""
        with np.errstate(over="ignore"):
            key = _mixed(np.asarray(requests, np.uint64) + _mixed(self._seed + np.uint64(0x9E37)))
            level = (_mixed(key + np.asarray(steps, np.uint64)) >> np.uint64(11)) * 2.0**-53
        return 1 + self.drafts - np.searchsorted(self._reached, level, side="right")

    def produced(self, request: int, steps: int) -> Int64:
        """Return the tokens that a request has after 0, 1, ... `steps` steps, int64[steps + 1]."""
        each = self.tokens(np.full(steps, request), np.arange(steps))
        return np.concatenate([[0], np.cumsum(each)])


def _mixed(value: UInt64 | np.uint64) -> UInt64:
    """Return the finaliser of SplitMix64 (Steele, Lea and Flood, 2014)."""
    mixed = np.asarray(value, np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


# Why a request waits: what keeps the head of a scheduler's queue out of the running batch.


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
