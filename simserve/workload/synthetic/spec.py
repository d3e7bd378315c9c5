"""The synthetic workloads that ship in traces/, matched to published statistics of public traces.

The points are quantiles of the Azure 2023 traces (conversation and code, CC-BY 4.0, described in Splitwise,
ISCA 2024) and of Mooncake's conversation trace (Apache-2.0, FAST 2025). No row of them is used. The seeds are
those, of a hundred or so tried, whose draws of a few thousand requests come closest to the targets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, model_validator

from simserve.errors import ScenarioError, nearest
from simserve.workload.synthetic.arrivals import Arrivals, Bursts, Gamma
from simserve.workload.synthetic.distributions import Constant, Distribution, Part, Quantiles

# What a synthetic workload says: arrivals, lengths, sessions, shared content. See `synthesize`.


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


_CHANCES = (
    *(0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8),
    *(0.85, 0.9, 0.93, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999, 1),
)
"""Probabilities of the quantile tables below."""


@dataclass(frozen=True)
class Preset:
    """A specification, the seed and format that it ships with, and what it imitates."""

    spec: SyntheticSpec
    seed: int
    file: str
    format: str
    imitates: str


def preset(name: str) -> Preset:
    """Return a preset by name; raises `ScenarioError` naming those that exist."""
    if name not in PRESETS:
        known = ", ".join(PRESETS)
        raise ScenarioError(f"unknown preset {name!r}{nearest(name, PRESETS)}; known: {known}")
    return PRESETS[name]


def _table(*values: float) -> Quantiles:
    return Quantiles(kind="quantiles", points=tuple(zip(_CHANCES, values, strict=True)))


_CHAT = SyntheticSpec(
    requests=5000,
    # Load drifts over minutes: a lively state a third of the time.
    arrivals=Bursts(kind="bursts", rate_per_s=4.6, burst_rate_per_s=7.8, mean_on_s=200, mean_off_s=400),
    prompt_tokens=_table(
        *(2, 29, 181, 207, 387, 403, 703, 1020, 1071, 1130, 1315),
        *(1876, 2734, 4076, 4083, 4090, 4098, 4142, 4831, 6179, 14050),
    ),
    output_tokens=_table(
        *(7, 16, 41, 54, 77, 91, 103, 129, 177, 384, 400),
        *(411, 424, 433, 451, 509, 540, 601, 643, 954, 1000),
    ),
)

_CODE = SyntheticSpec(
    requests=8819,
    # Silence three quarters of the time; within a burst the gaps are uneven too.
    arrivals=Bursts(kind="bursts", rate_per_s=0, burst_rate_per_s=11, mean_on_s=14, mean_off_s=45, cv=2.5),
    prompt_tokens=_table(
        *(3, 17, 75, 147, 385, 770, 1075, 1469, 1909, 2433, 3192),
        *(3920, 5187, 6193, 7303, 7435, 7436, 7436, 7436, 7437, 7437),
    ),
    output_tokens=_table(
        *(6, 6, 6, 7, 8, 9, 11, 13, 16, 20, 29),
        *(39, 55, 72, 90, 128, 170, 251, 359, 825, 1899),
    ),
)

_LONG_CONTEXT = SyntheticSpec(
    requests=4000,
    arrivals=Gamma(kind="gamma", rate_per_s=3.4, cv=1.5),
    prompt_tokens=_table(
        *(891, 894, 901, 964, 1662, 3263, 4993, 6909, 9570, 13196, 17869),
        *(21464, 27367, 32398, 39550, 52215, 66448, 85400, 100810, 121300, 126195),
    ),
    output_tokens=_table(
        *(1, 3, 10, 24, 100, 213, 291, 350, 399, 447, 504),
        *(543, 597, 648, 698, 800, 891, 1118, 1567, 2000, 2000),
    ),
    # Every prompt begins with the same system prompt of one block.
    shared_prefixes=SharedPrefixes(groups=(PrefixGroup(tokens=512),), counted="within"),
    revisits=Revisits(
        share=0.55,
        fraction=Quantiles(
            kind="quantiles",
            points=((0, 0.015), (0.05, 0.15), (0.1, 0.29), (0.25, 0.59), (0.5, 0.85), (0.75, 0.95), (1, 1)),
        ),
        age_s=Quantiles(
            kind="quantiles",
            points=(
                (0, 0),
                (0.05, 30),
                (0.1, 42),
                (0.25, 66),
                (0.5, 123),
                (0.75, 264),
                (0.95, 615),
                (1, 3030),
            ),
        ),
    ),
    block_tokens=512,
)

PRESETS = {
    "chat": Preset(_CHAT, 157, "chat.csv.gz", "azure", "Azure 2023 conversation"),
    "code": Preset(_CODE, 44, "code.csv.gz", "azure", "Azure 2023 code"),
    "long-context": Preset(
        _LONG_CONTEXT, 47, "long_context.jsonl.gz", "mooncake", "Mooncake FAST'25 conversation"
    ),
}
