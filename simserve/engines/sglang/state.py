"""What the parts of the SGLang scheduler share: the pool, the running batch, the queue, the ratio, flags."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from simserve.core import Request, WaitReason
from simserve.engines.sglang.kv_loads import Loads
from simserve.engines.sglang.options import RETRACT_DECODE_STEPS, SglangParams
from simserve.engines.sglang.running import NewTokenRatio, Running
from simserve.engines.sglang.sequence import Sequence
from simserve.errors import InvariantError
from simserve.kvcache.radix_pool import RadixPool


@dataclass
class Step:
    """What was decided, for booking and for whoever compares decisions."""

    prefill: list[Sequence] = field(default_factory=list)
    chunked: Sequence | None = None
    """The one of `prefill` whose prompt goes on in the next step."""
    decodes: int = 0
    retracted: list[Sequence] = field(default_factory=list)
    """Sent back to the queue because memory ran out."""
    preempted: list[Sequence] = field(default_factory=list)
    """Sent back to the queue for a more urgent request."""


class Outcome(NamedTuple):
    """A step that was run: how often, and the requests whose last token came out of it."""

    step: Step
    steps: int
    done: set[int]


class State:
    """The scheduler's memory between two decisions."""

    def __init__(self, params: SglangParams, pool: RadixPool) -> None:
        self.params = params
        self.pool = pool
        self.loads: Loads | None = None
        """Loads from tiers below HBM, if there are any."""
        self.batch = Running(pool.page_size)
        self.ratio = NewTokenRatio(params.schedule_conservativeness)
        self.queue: list[Sequence] = []
        self.full = False
        """Nobody is admitted until somebody leaves the running batch."""
        self.kept_out = WaitReason.STEP
        """What the head of the queue waits for; while the batch is `full`, why it is."""
        self.chunked: Sequence | None = None
        """The request whose prompt is in progress."""
        self.parting: dict[int, Sequence] = {}
        """Out of the batch, but their last allowed token is still in flight (with overlap)."""
        self.unbooked: Outcome | None = None
        """A result that is not processed yet (with overlap)."""
        self.sent_back: list[Request] = []
        """Requests that lost their KV and of which no decision has told yet."""
        self._entered = 0

    @property
    def preempts(self) -> bool:
        """Whether urgent requests may take the place of running ones."""
        params = self.params
        return params.enable_priority_scheduling and not params.disable_priority_preemption

    def enqueue(self, sequence: Sequence) -> None:
        """Put a request at the tail of the waiting queue."""
        self._entered += 1
        sequence.rank = self._entered
        sequence.waiting = True
        self.queue.append(sequence)

    def make_room(self, tokens: int) -> bool:
        """Let `tokens` tokens be free, evicting if needed; loads give way. Return whether they are."""
        if self.pool.make_room(tokens):
            return True
        return self.loads is not None and self.loads.cancel() and self.pool.make_room(tokens)

    def take(self, tokens: int, most_tokens: int = 0) -> None:
        """Take `tokens` free tokens, evicting if needed.

        With pages of several tokens the engine, which does not count whose last page has room, evicts until
        `most_tokens` are free.
        """
        if self.pool.page_size > 1:
            self.pool.make_room(most_tokens)
        if not self.make_room(tokens):
            raise InvariantError(f"{tokens} KV tokens wanted, {self.pool.free} free")
        self.pool.free -= tokens

    def part(self) -> bool:
        """Take out of the batch who has all its allowed output once the step in flight is booked.

        Only with overlap; the result that ends them is still awaited. Return whether there were any.
        """
        reached = self.batch.take_limited()
        if reached:
            self.parting.update((sequence.request.id, sequence) for sequence in reached)
            self.full = False
        return bool(reached)

    def send_back(self, victim: Sequence, remaining: int) -> None:
        """Take a request out of the running batch, uncached, and make room for the `remaining` ones.

        Its token in flight is dropped. If that was its last one, whoever plays the model has shown it
        already: the request leaves for good instead of being computed again.
        """
        self.batch.remove(victim)
        self.pool.drop(victim.kv)
        self.pool.make_room(remaining * RETRACT_DECODE_STEPS)
        victim.extend = victim.known
        if self.unbooked is not None and victim.request.id in self.unbooked.done:
            victim.done = True
            return
        victim.returned = True
        victim.request.known = victim.known
        self.sent_back.append(victim.request)

    def requeue(self, victims: list[Sequence]) -> None:
        """Put requests that were sent back at the tail of the queue."""
        for victim in victims:
            if not victim.done:
                self.enqueue(victim)

    def told(self) -> list[Request]:
        """Return, once, the requests that lost their KV."""
        told, self.sent_back = self.sent_back, []
        return told
