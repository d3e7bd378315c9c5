"""One request on its way from a prefill to a decode replica: when which part of its KV may move, and does.

KV leaves after the whole prompt, after each chunk, or layer by layer. Layer by layer, all layers but the last
may leave from the end of the step's first layer on, and the last one from the end of the step: on a link of
its own that gives max(T_prefill + x / L, t_layer1 + x) for a transfer of x. Nothing moves before the decoding
side has room and the hand-shake is over.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from simpy.events import Timeout

from simserve.core import Request, SplitColumns
from simserve.core.request import DecodeRequest, PrefillRequest
from simserve.core.result import ABSENT
from simserve.errors import InvariantError
from simserve.model.kv import KvTransferSize
from simserve.sim.clock import Clock
from simserve.sim.disagg.links import LinkEnd, Links
from simserve.sim.recorder import Stamps
from simserve.sim.replica import Replica
from simserve.sim.specs import SplitSpec
from simserve.units import NS_PER_S

# When a split request passed from one stage to the next; one slot per row of the trace.


class StageRecorder:
    """Stamps of split requests."""

    def __init__(self, requests: int) -> None:
        """`requests` rows."""
        self.prefill = Stamps(requests)
        self.prefill_replica = _column(requests)
        self.prefill_end_ns = self.prefill.first_token_ns
        self.room_ns = _column(requests)
        self.transfer_end_ns = _column(requests)
        self.transfer_bytes = _column(requests, 0)
        self.transfer_ok = array("b", [ABSENT]) * requests

    def columns(self, decode: dict[str, NDArray[np.int64]]) -> SplitColumns:
        """Return the columns of the split; make those of the decoding side, `decode`, true for both sides."""
        side = {
            name: np.array(getattr(self.prefill, name), dtype=np.int64)
            for name in ("first_scheduled_ns", "cached_tokens", "preemptions", "requeued_ns")
        }
        split = side["first_scheduled_ns"] >= 0
        columns = SplitColumns(
            prefill_replica=np.array(self.prefill_replica, dtype=np.int64),
            prefill_scheduled_ns=side["first_scheduled_ns"],
            prefill_end_ns=np.array(self.prefill_end_ns, dtype=np.int64),
            room_ns=np.array(self.room_ns, dtype=np.int64),
            transfer_end_ns=np.array(self.transfer_end_ns, dtype=np.int64),
            decode_scheduled_ns=np.where(split, decode["first_scheduled_ns"], ABSENT),
            transfer_bytes=np.array(self.transfer_bytes, dtype=np.int64),
            transfer_ok=np.array(self.transfer_ok, dtype=np.int64),
            decode_cached_tokens=np.where(split, decode["cached_tokens"], 0),
        )
        for name in ("first_scheduled_ns", "cached_tokens"):
            decode[name] = np.where(split, side[name], decode[name])
        for name in ("preemptions", "requeued_ns"):
            decode[name] = decode[name] + side[name]
        return columns


def _column(requests: int, value: int = ABSENT) -> array[int]:
    return array("q", [value]) * requests


class Piece(NamedTuple):
    """KV that may leave from some time on: tokens [start, end), in some of the layers."""

    from_ns: int
    start: int
    end: int
    layers_before: int
    layers_upto: int


class Route(NamedTuple):
    """Between which replicas."""

    ends: tuple[LinkEnd, LinkEnd]
    reshard_bytes_per_s: int
    """0: nothing must be cut or joined."""


class Handover:
    """KV of one prompt on its way."""

    __slots__ = (
        "_cached",
        "_computed",
        "_covered",
        "_done",
        "_env",
        "_last_bytes",
        "_links",
        "_moving",
        "_pieces",
        "_ready",
        "_spec",
        "fails",
        "has_room",
        "lost",
        "moved_bytes",
        "prompt_tokens",
        "route",
    )

    def __init__(
        self, env: Clock, links: Links, spec: SplitSpec, prompt_tokens: int, done: Callable[[], None]
    ) -> None:
        """`done` is called when the last byte has arrived, or it is clear that it never will (`lost`)."""
        self._env = env
        self._links = links
        self._spec = spec
        self._done = done
        self.prompt_tokens = prompt_tokens
        self.route: Route | None = None
        """Set when the decoding replica is known."""
        self.fails = False
        """The transfer will turn out to be broken at its end."""
        self.lost = False
        """The KV was given up before it was read."""
        self.moved_bytes = 0
        self._pieces: deque[Piece] = deque()
        self._covered = 0
        """Tokens that pieces stand for."""
        self._cached = 0
        self._computed = False
        self.has_room = False
        """The decoding side holds blocks for the prompt."""
        self._ready = False
        self._moving = False
        self._last_bytes = 0

    def chunk(self, end: int, start_ns: int, end_ns: int) -> None:
        """A step from `start_ns` to `end_ns` computes the prompt up to token `end`."""
        if end <= self._covered:
            return  # computed again after a preemption
        layers = self._spec.size.layers
        if self._spec.overlap == "chunk" or layers == 1:
            self._pieces.append(Piece(end_ns, self._covered, end, 0, layers))
        else:
            first_ns = start_ns + (end_ns - start_ns) // layers
            self._pieces.append(Piece(first_ns, self._covered, end, 0, layers - 1))
            self._pieces.append(Piece(end_ns, self._covered, end, layers - 1, layers))
        self._covered = end
        self._go_on()

    def computed(self, expired: Callable[[], None]) -> None:
        """The whole prompt is computed; `expired` is called if nobody has room for it within the lease."""
        if self._covered < self.prompt_tokens:
            layers = self._spec.size.layers
            self._pieces.append(Piece(self._env.now, self._covered, self.prompt_tokens, 0, layers))
        self._computed = True
        if self._spec.lease_ns is not None and not self.has_room:
            Timeout(self._env, self._spec.lease_ns).callbacks.append(lambda _: self._expire(expired))
        self._go_on()

    def room(self, cached_tokens: int) -> None:
        """The decoding side has room, and the first `cached_tokens` tokens."""
        self.has_room = True
        self._cached = cached_tokens
        Timeout(self._env, self._spec.handshake_ns).callbacks.append(lambda _: self._shaken())

    def give_up(self) -> None:
        """The KV is gone; whoever asks for it will hear that it is lost."""
        self.lost = True
        if self._ready and not self._moving:
            self._go_on()

    def _shaken(self) -> None:
        self._ready = True
        self._go_on()

    def _expire(self, expired: Callable[[], None]) -> None:
        if not self.has_room and not self.lost:
            self.lost = True
            expired()

    def _go_on(self) -> None:
        """Move the next piece if it may move; end if there is none to come."""
        if self._moving or not self._ready:
            return
        if self.lost:
            self._end()
            return
        while self._pieces:
            piece = self._pieces[0]
            wait_ns = piece.from_ns - self._env.now
            if wait_ns > 0:
                self._moving = True
                Timeout(self._env, wait_ns).callbacks.append(lambda _: self._landed())
                return
            self._pieces.popleft()
            size_bytes = piece_bytes(self._spec.size, piece, self._cached, self.prompt_tokens)
            if size_bytes:
                self._send(size_bytes)
                return
        if self._computed:
            self._end()

    def _send(self, size_bytes: int) -> None:
        assert self.route is not None
        self._moving = True
        self.moved_bytes += size_bytes
        self._last_bytes = size_bytes
        self._links.send(size_bytes, self.route.ends, self._landed)

    def _landed(self) -> None:
        self._moving = False
        self._go_on()

    def _end(self) -> None:
        """Cut or join what came last (what came before was, meanwhile), and tell."""
        self._moving = True
        rate = self.route.reshard_bytes_per_s if self.route is not None else 0
        if rate and self._last_bytes and not self.lost:
            delay_ns = -(-self._last_bytes * NS_PER_S // rate)
            Timeout(self._env, delay_ns).callbacks.append(lambda _: self._done())
        else:
            self._done()


def piece_bytes(size: KvTransferSize, piece: Piece, cached_tokens: int, prompt_tokens: int) -> int:
    """Return the bytes of a piece beyond the tokens that the decoding side has; layers count alike."""
    start = max(piece.start, cached_tokens)
    whole = size.of(start, piece.end, prompt_tokens)
    return whole * piece.layers_upto // size.layers - whole * piece.layers_before // size.layers


# A request between the two sides of a split, and what the prefill side reports.


class Passage:
    """A split request from its arrival to the end of its hand-over."""

    __slots__ = ("decode", "handover", "length", "prefill", "source", "target")

    def __init__(self, request: Request, length: int, source: Replica) -> None:
        """`length` tokens will be its answer; `source` computes the prompt."""
        row, prompt, priority = request.id, request.prompt_tokens, request.priority
        self.prefill = PrefillRequest(row, request.arrival_ns, prompt, 1, priority)
        self.decode = DecodeRequest(row, request.arrival_ns, prompt, request.max_tokens, priority)
        self.length = length
        self.source = source
        self.target: Replica | None = None
        """Who answers, once that is known."""
        self.handover: Handover
        """Its KV on the way; set by the cluster."""


class PrefillSide:
    """The sink of prefill replicas."""

    def __init__(
        self, recorder: Stamps, sampled: Callable[[Request], None], computed: Callable[[Request], None]
    ) -> None:
        """`sampled` and `computed` are called with a prompt whose token was sampled, and that is done."""
        self.recorder = recorder
        self._sampled = sampled
        self._computed = computed

    def first_token(self, request: Request) -> None:
        """A prompt's token was sampled."""
        self._sampled(request)

    def complete(self, request: Request, output_tokens: int) -> None:
        """A prompt is computed."""
        self._computed(request)

    def abandon(self, request: Request, output_tokens: int, seen_tokens: int) -> None:
        """Clients that give up are not simulated with a split."""
        raise InvariantError("clients that give up are not simulated with a prefill/decode split")
