"""What a synthetic workload says: arrivals, lengths, sessions, shared content. See `synthesize`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from simserve.workload.arrivals import Arrivals
from simserve.workload.distributions import Constant, Distribution, Part


class Sessions(Part):
    """Conversations: several turns, each carrying the history of the earlier ones."""

    turns: Distribution = Field(description="Turns per session (rounded, at least 1).")
    think_s: Distribution = Field(
        description="Closed loop: pause between an answer's end and the next turn. Open loop: between "
        "the starts of two turns."
    )
    history: Literal["keep", "none"] = Field(
        default="keep",
        description="keep: a turn's prompt begins with all earlier prompts and answers of its session.",
    )
    loop: Literal["closed", "open"] = Field(
        default="closed",
        description="closed: a turn waits for the answer before it; open: its time is fixed in advance.",
    )
    max_context_tokens: int | None = Field(
        default=None,
        gt=0,
        description="A session ends before a turn whose prompt and answer would exceed this.",
    )


class PrefixGroup(Part):
    """Requests (or sessions) that begin with the same tokens, such as a system prompt."""

    weight: float = Field(
        default=1.0, gt=0, description="Share of the requests, relative to the other groups."
    )
    tokens: int = Field(ge=0, description="Length of the common beginning; 0 for none.")


class SharedPrefixes(Part):
    """System prompts: every request (or session) belongs to one group."""

    groups: tuple[PrefixGroup, ...] = Field(min_length=1, description="The groups.")
    counted: Literal["added", "within"] = Field(
        default="added",
        description="added: a group's tokens come on top of prompt_tokens; within: part of it.",
    )


class Revisits(Part):
    """Single requests that begin like an earlier one, as later turns do in an open-loop log."""

    share: float = Field(gt=0, le=1, description="Share of the requests that do so.")
    fraction: Distribution = Field(
        description="Share of the prompt that the earlier request has too, 0 to 1 (in whole blocks)."
    )
    age_s: Distribution = Field(description="How long ago the earlier request arrived.")


class SyntheticSpec(Part):
    """A generated workload; each part draws from a random stream of its own."""

    requests: int | None = Field(
        default=None, gt=0, description="Number of requests (turns of sessions included)."
    )
    duration_s: float | None = Field(
        default=None, gt=0, description="Instead of requests: arrivals during this time."
    )
    grown_from: float | None = Field(
        default=None,
        gt=0,
        description="The requests (or seconds) that this workload had before it was made longer: its first "
        "requests stay exactly as they were. Studies set it; see docs/capacity.md.",
    )
    arrivals: Arrivals = Field(description="When requests, or sessions, arrive.")
    prompt_tokens: Distribution = Field(
        description="Prompt length (rounded, at least 1); in sessions that keep history, a turn's new tokens."
    )
    output_tokens: Distribution = Field(description="Output length (rounded, at least 1).")
    sessions: Sessions | None = Field(
        default=None, description="Turns of conversations; default: independent requests."
    )
    shared_prefixes: SharedPrefixes | None = Field(
        default=None, description="System prompts that requests share."
    )
    revisits: Revisits | None = Field(default=None, description="Requests that begin like earlier ones.")
    block_tokens: Annotated[int, Field(gt=0)] = Field(
        default=16,
        description="Tokens per content id; ids are made if sessions keep history or content is shared.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> SyntheticSpec:
        if (self.requests is None) == (self.duration_s is None):
            raise ValueError("exactly one of requests and duration_s is needed")
        longest = self.duration_s if self.requests is None else self.requests
        if self.grown_from is not None and longest is not None and self.grown_from > longest:
            raise ValueError(f"grown_from {self.grown_from:g} is more than the whole, {longest:g}")
        if self.revisits is not None and self.sessions is not None:
            raise ValueError(
                "revisits are for independent requests; sessions already come back to their content"
            )
        if (
            self.sessions is not None
            and isinstance(self.sessions.turns, Constant)
            and self.sessions.turns.value < 1
        ):
            raise ValueError("a session has at least one turn")
        return self

    @property
    def has_content(self) -> bool:
        """Whether block ids are generated."""
        keeps = self.sessions is not None and self.sessions.history == "keep"
        return keeps or self.shared_prefixes is not None or self.revisits is not None
