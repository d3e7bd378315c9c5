"""Token content as runs: what a prefix cache compares, without one object per token.

A run `(segment, start, length)` is the tokens at positions start .. start + length of a named text.
Equal segment and equal position mean an equal token; tokens of different segments always differ. A
sequence of tokens is a tuple of runs in canonical form (neighbours that continue each other are one run),
so equal tuples are equal texts and the work grows with the runs, not with the tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import starmap
from typing import NamedTuple, TypeAlias


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
