"""The contract of a router: which replica gets an arriving request, and what a router may know.

A router sees replicas as of its last refresh (`refresh_ms`; 0: as of this instant). What it has sent itself,
and what came back, it knows at once: `first_token` and `ended` tell it, if it wants to hear of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

from pydantic import BaseModel, ConfigDict, Field

from simserve.core import Request, Trace
from simserve.kvcache import Content
from simserve.kvcache.content import TraceContent
from simserve.registry import Registry
from simserve.units import ms_to_ns


class RouterParams(BaseModel):
    """Base of every router's settings: frozen, unknown names refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class StateParams(RouterParams):
    """Settings of a router that reads the state of replicas."""

    refresh_ms: float = Field(
        default=0.0,
        ge=0,
        le=3_600_000,
        allow_inf_nan=False,
        description="Replica state is seen as of the last multiple of this time; 0: as of now.",
    )

    @property
    def refresh_ns(self) -> int:
        """The interval in ns; 0 means exact."""
        return ms_to_ns(self.refresh_ms)


class Target(Protocol):
    """What a router may see of a replica: state as of the last refresh, but for the prefix cache."""

    @property
    def outstanding_requests(self) -> int:
        """Requests given to the replica and not finished."""
        ...

    @property
    def waiting_requests(self) -> int:
        """Requests in the scheduler's queue."""
        ...

    @property
    def running_requests(self) -> int:
        """Requests that hold KV."""
        ...

    @property
    def block_size(self) -> int:
        """Tokens per KV block."""
        ...

    @property
    def kv_blocks(self) -> int:
        """Usable KV blocks."""
        ...

    @property
    def max_num_batched_tokens(self) -> int | None:
        """Prompt tokens that one step may take, as the engine publishes it; None: it has no such limit."""
        ...

    def outstanding_tokens(self, now_ns: int) -> int:
        """Prompt and output tokens, as far as known now, of the outstanding requests."""
        ...

    def kv_use(self, now_ns: int) -> float:
        """Share of the KV blocks that requests hold, 0 to 1."""
        ...

    def cached_tokens(self, request: Request, now_ns: int) -> int:
        """Tokens at the start of the request's prompt that the prefix cache holds now.

        Never stale: engines publish what enters and leaves their cache as it happens (KV events).
        """
        ...

    def cached_below(self, request: Request, now_ns: int) -> Mapping[str, int]:
        """Tokens of the prompt, after those in HBM, that KV tiers can give now, by kind of tier."""
        ...


@dataclass(frozen=True)
class Known:
    """What may be known of a workload's requests beforehand: what their prompts share, and their sessions."""

    trace: Trace
    block_size: int
    """Tokens of the blocks in which prompts are looked at."""

    @property
    def content(self) -> Content | None:
        """Keys of prompt blocks; None if the trace does not say what prompts share."""
        return TraceContent.of(self.trace, self.block_size)

    @property
    def sessions(self) -> list[int] | None:
        """The session of each request by its id; None if the trace has none."""
        return None if self.trace.session is None else self.trace.session.tolist()


class Router(ABC):
    """Chooses a replica for each arrival; must be deterministic given its seed."""

    Params: ClassVar[type[RouterParams]] = RouterParams
    """Its settings, as a scenario writes them."""
    hears_first_tokens: ClassVar[bool] = False
    """True if it is told of every first token."""
    hears_ends: ClassVar[bool] = False
    """True if it is told of every request that finished, was refused or dropped."""
    refresh_ns: int = 0
    """How old its view of the replicas may be (see `StateParams`); 0: as of now."""
    assumptions: tuple[str, ...] = ()
    """What a report must say of it."""

    def __init__(self, params: Any, *, seed: int) -> None:
        """`params` are of its `Params`."""
        self.params = params
        self.seed = seed

    @classmethod
    def made(cls, params: Any, seed: int, known: Known) -> Router:
        """Return a fresh router; one that looks at prompts or sessions takes them from what is `known`."""
        return cls(params, seed=seed)

    @abstractmethod
    def choose(self, request: Request, targets: Sequence[Target], now_ns: int) -> int | None:
        """Return the index of the target that gets `request`; always the same targets in the same order.

        None, from a `HoldingRouter` only: nobody yet.
        """

    def first_token(self, request: Request, now_ns: int) -> None:
        """Take note of a request's first token, if `hears_first_tokens`."""
        return

    def ended(self, request: Request, now_ns: int) -> None:
        """Take note of a request's end, if `hears_ends`."""
        return


class HoldingRouter(Router):
    """A router with a queue of its own; if it `may_hold` it is asked even if there is one replica."""

    @property
    @abstractmethod
    def may_hold(self) -> bool:
        """False if, with its settings, it never holds a request back."""

    @abstractmethod
    def release(self, targets: Sequence[Target], now_ns: int) -> tuple[Request, int] | None:
        """Return the held request that goes to a target now, and which; None: all stay.

        Asked after every first token and every end, until it returns None.
        """

    @abstractmethod
    def withdraw(self, request: Request) -> None:
        """Forget a held request: its client gave up."""


ROUTERS: Registry[type[Router]] = Registry("router", "simserve.router", "simserve.engines")
"""An engine's own router is in the engine's folder."""


# Which of several equally good replicas: the next one in turn, so that an idle fleet is filled evenly.


class Rotation:
    """Finds the smallest value; among equals the first one after the last choice, in cyclic order."""

    __slots__ = ("last",)

    def __init__(self) -> None:
        self.last = -1

    def smallest(self, values: Sequence[float]) -> int:
        """Return the index of the smallest value and remember it."""
        smallest = min(values)
        try:
            self.last = values.index(smallest, self.last + 1)
        except ValueError:
            self.last = values.index(smallest)
        return self.last


# What a router knows without asking anybody: where it sent each request, and which have come back.


class InFlight:
    """Requests in flight per target."""

    __slots__ = ("_target", "counts")

    def __init__(self) -> None:
        self.counts: list[int] = []
        """Requests in flight by target."""
        self._target: dict[int, int] = {}

    def expect(self, targets: int) -> list[int]:
        """Return the counts, one per target."""
        while len(self.counts) < targets:
            self.counts.append(0)
        return self.counts

    def sent(self, request: Request, target: int) -> None:
        """Count a request as in flight."""
        self._target[request.id] = target
        self.counts[target] += 1

    def target_of(self, request: Request) -> int:
        """Return where a request in flight is."""
        return self._target[request.id]

    def ended(self, request: Request) -> int:
        """Count a request as done; return where it was."""
        target = self._target.pop(request.id)
        self.counts[target] -= 1
        return target


# A prompt as a router sees it: full blocks that others may share, and a rest that is its own.

UNKNOWN_CONTENT = "the trace does not say what prompts share: all prompts are taken as different"
"""What a report must say when a router that looks at prompts has nothing to look at."""


class Prompt(NamedTuple):
    """The parts of a prompt; equal keys mean that this block and all before it are equal."""

    keys: list[int]
    rest_tokens: int


class PromptBlocks:
    """Cuts prompts into blocks."""

    def __init__(self, content: Content | None, block_size: int) -> None:
        """`content` gives keys of blocks of `block_size` tokens; None: nobody shares anything."""
        self._content = content
        self.block_size = block_size
        self.assumptions = () if content is not None else (UNKNOWN_CONTENT,)

    def cut(self, request: Request) -> Prompt:
        """Return the parts of the request's prompt."""
        tokens = request.prompt_tokens
        if self._content is None:
            return Prompt([], tokens)
        return Prompt(self._content.keys(request, tokens // self.block_size), tokens % self.block_size)


def leading(keys: list[int], known: Container[int]) -> int:
    """Return how many keys from the first on are in `known`, which has with each key all before it."""
    return bisect_left(range(len(keys)), True, key=lambda index: keys[index] not in known)
