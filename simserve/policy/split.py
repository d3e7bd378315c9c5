"""Which engines can be split into prefill and decode replicas, and what their halves agree on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from simserve.core import Request
from simserve.registry import Registry


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


SPLITS: Registry[SplitEngine] = Registry("engine with a prefill/decode split", "simserve.policy")
"""By the name of the policy whose halves they are."""
