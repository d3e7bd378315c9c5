"""What a pool says about speculative decoding: what drafts, how many tokens, how many are accepted."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from simserve.core.acceptance import Acceptance
from simserve.model.draft import DraftMethod
from simserve.scenario.part import Part

Chance = Annotated[float, Field(ge=0, le=1)]
MOST_DRAFTS = 64


class SpeculationSpec(Part):
    """Drafts that a step verifies, under the names of vLLM's `speculative_config`."""

    method: DraftMethod = Field(
        description="mtp: the model's own prediction layer; eagle: one layer like its last; draft_model: "
        "`model`; ngram: looked up in the prompt, at no cost on the GPU."
    )
    num_speculative_tokens: Annotated[int, Field(ge=1, le=MOST_DRAFTS)] = Field(
        description="Tokens drafted for each sequence and step."
    )
    acceptance: Chance | Annotated[tuple[Chance, ...], Field(strict=False, min_length=1)] | None = Field(
        None,
        description="Chance that a draft is accepted if all before it were: one number for all, or a list of "
        "one per draft.",
    )
    acceptance_length: Annotated[float, Field(ge=1)] | None = Field(
        None,
        description="Tokens per step and sequence in the mean, as engines report them (1 + accepted drafts), "
        "instead of `acceptance`: every draft is then given the same chance that makes this mean.",
    )
    model: str | None = Field(
        None, description="The draft model: its name, or the path of a config.json (method draft_model)."
    )
    seed: Annotated[int, Field(ge=0)] = Field(
        0, description="Draws of what is accepted, with the scenario's."
    )

    @model_validator(mode="after")
    def _whole(self) -> SpeculationSpec:
        drafts = self.num_speculative_tokens
        if (self.acceptance is None) == (self.acceptance_length is None):
            found = "none" if self.acceptance is None else "both"
            raise ValueError(f"give exactly one of acceptance and acceptance_length, found {found}")
        if isinstance(self.acceptance, tuple) and len(self.acceptance) != drafts:
            raise ValueError(
                f"acceptance = {list(self.acceptance)}, allowed: one number, or num_speculative_tokens = "
                f"{drafts} of them"
            )
        if self.acceptance_length is not None and self.acceptance_length > drafts + 1:
            raise ValueError(
                f"acceptance_length = {self.acceptance_length:g}, allowed is at most "
                f"num_speculative_tokens + 1 = {drafts + 1}"
            )
        if (self.model is None) == (self.method == "draft_model"):
            found = f"model = {self.model}" if self.model else "no model"
            raise ValueError(f"{found} with method {self.method}; a model belongs to method draft_model")
        return self

    @property
    def chances(self) -> tuple[float, ...]:
        """Chance of each draft to be accepted if all before it were."""
        drafts = self.num_speculative_tokens
        if isinstance(self.acceptance, tuple):
            return self.acceptance
        if self.acceptance is not None:
            return (self.acceptance,) * drafts
        assert self.acceptance_length is not None
        return (chance_for(self.acceptance_length, drafts),) * drafts

    def drawn(self, seed: int) -> Acceptance:
        """Return the draws under the scenario's seed."""
        return Acceptance(self.chances, self.seed + seed)

    def as_mapping(self) -> dict[str, Any]:
        """Return what was written, as one mapping."""
        return self.model_dump(mode="json", exclude_none=True)


def chance_for(length: float, drafts: int) -> float:
    """Return the p for which 1 + p + p^2 + ... + p^drafts = length (by bisection, to 1e-12)."""
    low, high = 0.0, 1.0
    while high - low > 1e-12:
        p = (low + high) / 2
        reached = sum(p**depth for depth in range(drafts + 1))
        low, high = (p, high) if reached < length else (low, p)
    return (low + high) / 2
