"""The contract of a scheduling policy: it holds the queue of one replica and decides each step.

A policy owns its waiting and running requests and the KV pool, and nothing else: it never sees the clock
beyond `now_ns`, the latency model, or how long an answer will be. It can be driven without an event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, Self

from pydantic import BaseModel, ConfigDict

from simserve.core import Batch, Request, TierResult, Trace, Wait, WaitReason
from simserve.core.batch import Drafting
from simserve.core.request import Acceptance, KvMoved
from simserve.errors import InvariantError
from simserve.registry import Registry


@dataclass(frozen=True)
class Placement:
    """How a model is laid out over GPUs, as far as engines' defaults depend on it."""

    tp: int = 1
    pp: int = 1
    dp: int = 1
    """Attention ranks, of `tp` x `pp` GPUs each."""
    mla: bool = False
    """Attention over a latent cache."""
    sparse: bool = False
    """An indexer picks the tokens to attend to."""
    compressed: bool = False
    """Attention over compressed tokens (DeepSeek-V4)."""
    architecture: str = ""
    """The model's class, as its configuration names it."""
    sm_arch: int = 0
    """The GPU's compute capability times ten."""
    role: str = "mixed"
    """mixed, prefill or decode."""
    two_batch: bool = False
    """Two halves of a step overlap."""


class PolicyParams(BaseModel):
    """Base of every policy's settings: frozen, unknown names refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def why_not(cls, option: str, settings: Mapping[str, Any]) -> str | None:
        """Return why an option that the engine has is refused here; None if the engine has none of that name.

        `settings` are all that was written, with the preset's defaults.
        """
        return None

    prefix_caching_option: ClassVar[str] = ""
    """How a scenario says that prefixes are cached."""

    @property
    def most_sequences(self) -> int | None:
        """Most sequences of one step; None: the policy has no such limit."""
        return None

    def tokens_per_step(self, longest: int) -> int:
        """Return the most tokens of one step; without a budget, one prompt of the `longest` tokens."""
        return longest

    @property
    def caches_prefixes(self) -> bool:
        """True unless the settings switch prefix caching off."""
        return True

    @property
    def retention_interval(self) -> int | None:
        """Tokens after which blocks of window layers are cached; 0: only where prompts end; None: all."""
        return 0

    @property
    def published_token_budget(self) -> int | None:
        """Prompt tokens of one step as the engine tells routers (max_num_batched_tokens); None: no limit."""
        return None

    def of_rank(self, dp: int) -> Self:
        """Return what one of `dp` attention ranks is given of the server's settings.

        Raises ScenarioError, beginning with `key = `, if a setting is too small to be shared.
        """
        return self

    def check_lengths(self, max_model_len: int) -> None:
        """Raise `ScenarioError` if the engine would not start with sequences of up to `max_model_len` tokens.

        The message begins with `key = `, the setting that is wrong.
        """


class Policy(Protocol):
    """Decides what one replica computes next. `Scheduler`, the base, gives what few classes need."""

    plans_ahead: bool

    @property
    def kv_tiers(self) -> tuple[TierResult, ...]:
        """See `Scheduler`, as for the methods that follow."""
        ...

    def settle(self, steps: int) -> None:
        """Count the memory of a run in flight, for a router that looks."""
        ...

    def cached_tokens(self, request: Request) -> int:
        """Return the tokens of a prompt that are cached."""
        ...

    def cached_below(self, request: Request, now_ns: int) -> Mapping[str, int]:
        """Return the tokens of a prompt that KV tiers have."""
        ...

    def drop(self, request: Request) -> bool:
        """Forget a request whose client gave up."""
        ...

    @property
    def running(self) -> int:
        """Requests that hold KV."""
        ...

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        ...

    @property
    def kv_used_blocks(self) -> int:
        """Blocks held by running requests."""
        ...

    @property
    def kept_out(self) -> WaitReason:
        """What the last decision left the head of the queue waiting for.

        If nobody waited then, what one who arrives before the next decision waits for: the step in flight,
        unless it is sure already that the next decision keeps him out as well (as a `sealed` batch does).
        Equal for all steps for which a decision is repeated, and true until the next decision.
        """
        ...

    def add(self, request: Request | KvMoved) -> None:
        """Put an arriving request in the waiting queue; only the schedulers of a split get news of KV."""
        ...

    def next_batch(self, now_ns: int, lane: int = 0) -> Batch | Wait:
        """Decide the next step, given that every step decided before has been reported to `update`.

        Mutates only the policy's own state and the requests' scheduling fields. `lane` numbers the
        microbatch under pipeline parallelism: requests of other lanes are in flight and left alone.
        """
        ...

    def update(self, batch: Batch, steps: int, finished: Iterable[Request], lane: int = 0) -> None:
        """Book that `batch` ran `steps` times (at most batch.repeats) and whose last token came out of it."""
        ...


class Scheduler:
    """Base of every policy: the rest of the contract, as it is for a policy that does nothing special."""

    Params: ClassVar[type[PolicyParams]]
    """Its settings; every class has its own."""
    plans_ahead: bool = False
    """True: the engine decides a step while the one before runs; arrivals of that step are not seen."""
    can_drop: bool = False
    """True: `drop` is there, so that clients may give up."""

    @staticmethod
    def content_of(trace: Trace, block_size: int) -> object | None:
        """Return what a trace tells the policy of its prompts: the `content` of its constructor, if any."""
        return None

    @property
    def kv_tiers(self) -> tuple[TierResult, ...]:
        """Totals of the tiers below HBM."""
        return ()

    def settle(self, steps: int) -> None:
        """Let `kv_used_blocks` and `cached_tokens` be true for when `steps` steps (2 or more) have begun.

        Called with a growing number between `next_batch` and `update` of a run, when a router looks; what
        follows must not change. Not needed where a run takes no memory.
        """

    def cached_tokens(self, request: Request) -> int:
        """Return the tokens at the start of a request's prompt that the cache holds; change nothing."""
        return 0

    def cached_below(self, request: Request, now_ns: int) -> Mapping[str, int]:
        """Return the tokens after those that the KV tiers can give now, by kind of tier; change nothing."""
        return {}

    def drop(self, request: Request) -> bool:
        """Forget a request that waits; False (and nothing changed) if it does not wait."""
        raise InvariantError(f"policy {type(self).__name__} cannot drop a request: it lacks `drop`")


POLICIES: Registry[type] = Registry("policy", "simserve.engines")


# Which engines can be split into prefill and decode replicas, and what their halves agree on.


class Mover(Protocol):
    """Who moves KV between replicas, as a scheduler sees it: the `mover` of a split policy."""

    def room_for(self, request: Request, cached_tokens: int) -> None:
        """Blocks for a prompt are held here from now on; its first `cached_tokens` tokens are here."""
        ...

    def has_room(self, request: Request) -> bool:
        """Return whether blocks for the prompt are held on the decoding side."""
        ...

    def struck_off(self, request: Request) -> None:
        """A request that waited for KV is forgotten, because its transfer failed for good."""
        ...

    def lost(self, request: Request) -> None:
        """The KV of a computed prompt was given up before it was read."""
        ...


Overlap = Literal["request", "chunk", "layer"]
"""When KV leaves: after the whole prompt, after each chunk of it, or layer by layer as it is computed."""


@dataclass(frozen=True)
class SplitEngine:
    """The halves of one engine: policies with a `mover`, whose `add` also takes news of KV (`KvMoved`)."""

    prefill: type
    decode: type
    overlap: Overlap
    """What the engine does unless asked otherwise."""
    room_first: bool
    """True: a prompt is not computed before the decoding side has room for it."""
    computes_prompts: bool
    """True: a decoding replica can compute a prompt itself."""
    first_token: Literal["prefill", "decode"]
    """Which side samples the first token that the client sees."""
    handshake_ms: float
    """From room at the decoding side to the first byte."""
    lease_s: float | None
    """How long a computed prompt is kept for a reader that has not begun; None: for ever."""
    source: str
    """What all this follows, in words."""
    decode_options: tuple[str, ...] = ()
    """Keys of the scenario's `transfer` that the decode scheduler takes as settings of its own."""


# Which engines speculate here, and what their schedulers need to know of it.


@dataclass(frozen=True)
class DraftingEngine:
    """The schedulers of one engine with speculative decoding: policies that take a `drafting`."""

    whole: type
    """Of replicas that serve whole requests."""
    decode: type
    """Of the decoding replicas of a prefill/decode split."""
    drafting: Callable[[BaseModel, str, Acceptance, bool], Drafting]
    """From the policy's settings, the method, the draws, and whether KV comes from elsewhere."""
    settings: Callable[[BaseModel, str], BaseModel]
    """From the policy's settings and the method to the settings that the engine then has."""
    source: str
    """What all this follows, in words."""
