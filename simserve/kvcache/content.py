"""What prompts and answers hold, as keys of full KV blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import starmap
from typing import NamedTuple, TypeAlias

import numpy as np

from simserve.core import Request, Trace

# Token content as runs: what a prefix cache compares, without one object per token.
#
# A run `(segment, start, length)` is the tokens at positions start .. start + length of a named text.
# Equal segment and equal position mean an equal token; tokens of different segments always differ. A
# sequence of tokens is a tuple of runs in canonical form (neighbours that continue each other are one run),
# so equal tuples are equal texts and the work grows with the runs, not with the tokens.


class Run(NamedTuple):
    """Tokens `start .. start + length` of text `segment`."""

    segment: int
    start: int
    length: int


Runs: TypeAlias = tuple[Run, ...]


def canonical(runs: Iterable[tuple[int, int, int]]) -> Runs:
    """Merge neighbours that continue each other and leave out empty runs."""
    merged: list[Run] = []
    for run in starmap(Run, runs):
        if run.length <= 0:
            continue
        last = merged[-1] if merged else None
        if last and last.segment == run.segment and last.start + last.length == run.start:
            merged[-1] = Run(last.segment, last.start, last.length + run.length)
        else:
            merged.append(run)
    return tuple(merged)


def tokens_in(runs: Runs) -> int:
    """Return the number of tokens."""
    return sum(run.length for run in runs)


def take(runs: Runs, tokens: int) -> Runs:
    """Return the first `tokens` tokens (all, if there are fewer)."""
    return split(runs, tokens)[0]


def split(runs: Runs, tokens: int) -> tuple[Runs, Runs]:
    """Return the first `tokens` tokens and the rest."""
    left = tokens
    for index, (segment, start, length) in enumerate(runs):
        if left < length:
            if left <= 0:
                return runs[:index], runs[index:]
            head = (*runs[:index], Run(segment, start, left))
            return head, (Run(segment, start + left, length - left), *runs[index + 1 :])
        left -= length
    return runs, ()


class Cursor:
    """A reading position in a sequence of runs; moving on costs the runs passed."""

    __slots__ = ("_index", "_offset", "_runs", "left")

    def __init__(self, runs: Runs, tokens: int) -> None:
        """Read the first `tokens` tokens of `runs`, which has at least that many."""
        self._runs = runs
        self._index = 0
        self._offset = 0
        self.left = tokens
        """Tokens not read yet."""

    def peek(self, tokens: int) -> Runs:
        """Return the next `tokens` tokens without moving."""
        segment, start, length = self._runs[self._index]
        rest = length - self._offset
        if rest >= tokens:
            return (Run(segment, start + self._offset, tokens),)
        ahead = Cursor(self._runs, self.left)
        ahead._index, ahead._offset = self._index, self._offset
        return ahead.read(tokens)

    def read(self, tokens: int) -> Runs:
        """Return the next `tokens` tokens and move past them."""
        self.left -= tokens
        out: list[Run] = []
        while tokens > 0:
            segment, start, length = self._runs[self._index]
            here = min(tokens, length - self._offset)
            out.append(Run(segment, start + self._offset, here))
            tokens -= here
            self._advance(here, length)
        return tuple(out)

    def match(self, other: Runs) -> int:
        """Move past the longest common beginning with `other` and return its tokens."""
        matched = 0
        for segment, start, length in other:
            done = 0
            while done < length:
                if not self.left:
                    return matched
                mine, my_start, my_length = self._runs[self._index]
                if mine != segment or my_start + self._offset != start + done:
                    return matched
                here = min(length - done, my_length - self._offset, self.left)
                done += here
                matched += here
                self.left -= here
                self._advance(here, my_length)
        return matched

    def rewind(self, tokens: int) -> None:
        """Move back by `tokens` tokens."""
        self.left += tokens
        self._offset -= tokens
        while self._offset < 0:
            self._index -= 1
            self._offset += self._runs[self._index].length

    def _advance(self, tokens: int, length: int) -> None:
        self._offset += tokens
        if self._offset == length:
            self._index += 1
            self._offset = 0


class RunContent:
    """Content given as token runs (see `radix_runs`); equal chains of blocks get equal keys."""

    quoted = True

    def __init__(self, text: Callable[[Request], Runs], block_size: int) -> None:
        """`text` returns prompt and output of a request, the output as long as it may get."""
        self._text = text
        self._block_size = block_size
        self._keys: dict[int, list[int]] = {}
        self._rest: dict[int, Runs] = {}
        self._chains: dict[tuple[int, Runs], int] = {}

    def keys(self, request: Request, blocks: int) -> list[int]:
        """Return the keys of the first `blocks` blocks."""
        known = self._keys.setdefault(request.id, [])
        rest = self._rest.get(request.id)
        if rest is None:
            rest = self._text(request)
        while len(known) < blocks:
            piece, rest = split(rest, self._block_size)
            known.append(self.key(known[-1] if known else 0, piece))
        self._rest[request.id] = rest
        return known[:blocks]

    def key(self, parent: int, piece: Runs) -> int:
        """Return the key of the block of text `piece` that follows the one with key `parent` (0: none)."""
        return self._chains.setdefault((parent, piece), len(self._chains) + 1)

    def forget(self, request: Request) -> None:
        """Drop the request's keys; the chains stay known."""
        self._keys.pop(request.id, None)
        self._rest.pop(request.id, None)


_POSITIONS = 1 << 24
"""More blocks than a sequence ever has: (owner, position) as one integer."""


class OwnContent:
    """Content of which nothing is told: no two requests share any, but each knows its own."""

    quoted = False

    def keys(self, request: Request, blocks: int) -> list[int]:
        """Return the keys of the first `blocks` blocks (below 0)."""
        first = -1 - request.id * _POSITIONS
        return list(range(first, first - blocks, -1))

    def forget(self, request: Request) -> None:
        """Nothing is remembered."""


class TraceContent:
    """Content as a trace tells it: by its block ids, or by its sessions.

    An id of the trace stands for all tokens up to the end of its block, so an engine block ending inside it
    is told apart by its end: ids of 512 tokens serve engine blocks of any size. Without ids, the turns of a
    session are one growing text. Everything else (answers, prompts without either) is the request's own. A
    turn is sent when the answer before it is complete, so no answer is quoted while it is being made.
    """

    quoted = False

    def __init__(self, trace: Trace, block_size: int) -> None:
        """`block_size` tokens per engine block."""
        self._block_size = block_size
        self._trace_block = trace.block_tokens
        self._ids = trace.block_ids
        self._offsets = None if trace.block_offsets is None else trace.block_offsets.tolist()
        self._session = None if trace.session is None else trace.session.tolist()
        self._keys: dict[int, list[int]] = {}

    @classmethod
    def of(cls, trace: Trace, block_size: int) -> TraceContent | None:
        """Return the trace's content, or None if it says nothing about what prompts share."""
        if trace.block_ids is None and trace.session is None:
            return None
        return cls(trace, block_size)

    def keys(self, request: Request, blocks: int) -> list[int]:
        """Return the keys of the first `blocks` blocks (below 0 for what only request or session has)."""
        known = self._keys.get(request.id)
        if known is None or len(known) < blocks:
            longest = max(blocks, request.prompt_tokens // self._block_size)
            known = self._keys[request.id] = self._make(request, longest)
        return known[:blocks]

    def forget(self, request: Request) -> None:
        """Drop the request's keys."""
        self._keys.pop(request.id, None)

    def _make(self, request: Request, blocks: int) -> list[int]:
        if self._ids is None or self._offsets is None:
            owner = request.id if self._session is None else self._session[request.id]
            return [-1 - owner * _POSITIONS - position for position in range(blocks)]
        ids = self._ids[self._offsets[request.id] : self._offsets[request.id + 1]]
        shared = min(blocks, request.prompt_tokens // self._block_size)
        last_tokens = np.arange(1, shared + 1) * self._block_size - 1
        places = last_tokens // self._trace_block
        shared = int(np.searchsorted(places, len(ids)))
        keys = ids[places[:shared]] * self._trace_block + last_tokens[:shared] % self._trace_block
        own = range(shared, blocks)
        return keys.tolist() + [-1 - request.id * _POSITIONS - position for position in own]


def content_of(trace: Trace, block_size: int) -> TraceContent | OwnContent:
    """Return what a trace tells of its prompts; where it tells nothing, each request has its own content."""
    return TraceContent.of(trace, block_size) or OwnContent()
