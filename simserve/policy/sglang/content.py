"""What the prompts say, as far as a prefix cache must know: the hook that feeds the radix tree."""

from __future__ import annotations

from typing import Protocol

from simserve.core import Request
from simserve.kv.radix_runs import Run, Runs


class Content(Protocol):
    """Says which tokens a request has."""

    def prompt(self, request: Request) -> Runs:
        """Return the prompt in canonical form; its runs add up to `request.prompt_tokens`."""
        ...

    def output_segment(self, request: Request) -> int:
        """Return the segment whose first tokens are the request's output."""
        ...


class UniqueContent:
    """No two requests have a token in common: for traces that do not say what the prompts are."""

    def prompt(self, request: Request) -> Runs:
        """Return one run of a segment of the request's own."""
        return (Run(2 * request.id, 0, request.prompt_tokens),)

    def output_segment(self, request: Request) -> int:
        """Return another segment of the request's own."""
        return 2 * request.id + 1
