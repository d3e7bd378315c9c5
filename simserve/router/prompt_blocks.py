"""A prompt as a router sees it: full blocks that others may share, and a rest that is its own."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container
from typing import NamedTuple

from simserve.core import Request
from simserve.kv import Content

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
