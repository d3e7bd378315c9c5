"""A request inside the SGLang scheduler: its content, its KV, and what is known of its output."""

from __future__ import annotations

from typing import Protocol

from simserve.core import Request, Trace
from simserve.errors import TraceError
from simserve.kvcache.content import Run, Runs, canonical
from simserve.kvcache.radix_pool import Holding

# What the prompts say, as far as a prefix cache must know: the hook that feeds the radix tree.


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


class Sequence:
    """One request from its arrival to its end."""

    __slots__ = (
        "done",
        "extend",
        "joined",
        "kv",
        "limit_at",
        "marked",
        "most_outputs",
        "output_place",
        "outputs",
        "prefix",
        "prompt",
        "rank",
        "request",
        "returned",
        "slot",
        "waiting",
    )

    def __init__(
        self, request: Request, prompt: Runs, output_place: tuple[int, int], most_outputs: int
    ) -> None:
        self.request = request
        self.prompt = prompt
        self.output_place = output_place
        """Segment and position of its first output token."""
        self.most_outputs = most_outputs
        """Output tokens to reckon with: what the client allows, cut to what the replica can hold."""
        self.kv = Holding()
        """Its tokens in the pool (while it decodes: as of `joined`)."""
        self.outputs = 0
        """Output tokens that the scheduler has seen (while it decodes: as of `marked`)."""
        self.prefix = 0
        """Tokens whose KV exists at the next prefill step."""
        self.extend = 0
        """Tokens that the next prefill step computes."""
        self.rank = 0
        """Order of entry into the waiting queue."""
        self.slot = 0
        """Order inside the running batch."""
        self.joined = 0
        """Launched decode steps of the running batch when it joined."""
        self.marked = 0
        """Booked decode steps from which its own outputs count."""
        self.limit_at = -1
        """Launched decode steps of the running batch at which its allowed output is used up."""
        self.waiting = False
        self.returned = False
        """Whether it was ever sent back to the queue."""
        self.done = False

    def plan(self, computed: int) -> None:
        """Set the next prefill step to go on after `computed` tokens."""
        self.prefix = computed
        self.extend = self.known - computed

    @property
    def known(self) -> int:
        """Tokens that must be computed before the next output."""
        return self.request.prompt_tokens + self.outputs

    @property
    def outputs_left(self) -> int:
        """Output tokens to reckon with from now on."""
        return self.most_outputs - self.outputs

    def runs(self) -> Runs:
        """Return prompt and known output."""
        return canonical((*self.prompt, Run(*self.output_place, self.outputs)))
