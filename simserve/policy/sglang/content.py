"""What the prompts say, as far as a prefix cache must know: the hook that feeds the radix tree."""

from __future__ import annotations

from typing import Protocol

from simserve.core import Request, Trace
from simserve.errors import TraceError
from simserve.kv.radix_runs import Run, Runs


class Content(Protocol):
    """Says which tokens a request has."""

    def prompt(self, request: Request) -> Runs:
        """Return the prompt in canonical form; its runs add up to `request.prompt_tokens`."""
        ...

    def output_place(self, request: Request) -> tuple[int, int]:
        """Return the segment that holds the request's output, and the position of its first token there."""
        ...


class UniqueContent:
    """No two requests have a token in common: for traces that do not say what the prompts are."""

    def prompt(self, request: Request) -> Runs:
        """Return one run of a segment of the request's own."""
        return (Run(_own(request), 0, request.prompt_tokens),) if request.prompt_tokens else ()

    def output_place(self, request: Request) -> tuple[int, int]:
        """Return the start of another segment of the request's own."""
        return _own(request) - 1, 0


class BlockContent:
    """Prompts as the block ids of a trace: one segment per id; what follows the last id is the request's own.

    An answer is the request's own text: that a later turn repeats it shows only if the trace has ids for it.
    """

    def __init__(self, trace: Trace) -> None:
        """Raises TraceError if the trace has no block ids."""
        if trace.block_ids is None or trace.block_offsets is None:
            raise TraceError(f"{trace.origin.name}: no block ids, so the content of the prompts is unknown")
        self._ids = trace.block_ids
        self._offsets = trace.block_offsets
        self._block_tokens = trace.block_tokens

    def prompt(self, request: Request) -> Runs:
        """Return one run per block of the trace's row, the last one cut to the prompt."""
        runs: list[Run] = []
        left = request.prompt_tokens
        for block in self._ids[self._offsets[request.id] : self._offsets[request.id + 1]].tolist():
            tokens = min(self._block_tokens, left)
            if tokens > 0:
                runs.append(Run(block, 0, tokens))
            left -= tokens
        if left > 0:
            runs.append(Run(_own(request), 0, left))
        return tuple(runs)

    def output_place(self, request: Request) -> tuple[int, int]:
        """Return the start of a segment of the request's own."""
        return _own(request) - 1, 0


class SessionContent:
    """Prompts as the turns of sessions: one growing text each, in which every answer follows its prompt."""

    def __init__(self, trace: Trace) -> None:
        """Raises TraceError if the trace has no sessions."""
        if trace.session is None:
            raise TraceError(f"{trace.origin.name}: no sessions, so the content of the prompts is unknown")
        self._session = trace.session.tolist()

    def prompt(self, request: Request) -> Runs:
        """Return the beginning of the session's text."""
        return (Run(self._session[request.id], 0, request.prompt_tokens),) if request.prompt_tokens else ()

    def output_place(self, request: Request) -> tuple[int, int]:
        """Return the place behind the prompt."""
        return self._session[request.id], request.prompt_tokens


def trace_content(trace: Trace, block_size: int) -> Content | None:
    """Return what a trace tells of its prompts: by block ids, else by sessions, else nothing (None)."""
    if trace.block_ids is not None:
        return BlockContent(trace)
    return None if trace.session is None else SessionContent(trace)


def _own(request: Request) -> int:
    """Return the first of two segments that no other request and no block has."""
    return -2 * request.id - 1
