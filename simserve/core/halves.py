"""The two halves of a request that is split: its prompt on one replica, its answer on another.

Both have the row of the whole request as id. What a prefill/decode split adds to a scheduler's life is told
apart by these types, so that whole requests cost nothing more.
"""

from __future__ import annotations

from typing import NamedTuple

from simserve.core.request import Request


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
