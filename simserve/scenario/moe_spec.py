"""What a pool says about its experts: how tokens choose them, where they lie, how they are reached."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from simserve.scenario.part import Part

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]


BALANCED = ("eplb", "topology")
"""Placements that follow the load."""
EXPERT_LOAD_KEYS = ("kind", "seed", "swaps", "drift")
"""Keys of an expert load that are not settings of its kind."""


class SwapSpec(Part):
    """A sudden change of popularity."""

    at_s: Seconds = Field(description="When.")
    share: Share = Field(description="Share of each layer's experts that exchange their popularity.")


class DriftSpec(Part):
    """A slow change of popularity."""

    every_s: Seconds = Field(description="How often some experts exchange their popularity.")
    share: Share = Field(description="Share of each layer's experts that take part each time.")


class ExpertLoadSpec(Part):
    """How often each expert is picked, layer by layer."""

    kind: str = Field(description="uniform, zipf, dirichlet, power_law, histogram or trace.")
    seed: Annotated[int, Field(ge=0)] = Field(0, description="Which experts are popular in which layer.")
    swaps: Annotated[tuple[SwapSpec, ...], Field(strict=False)] = Field(
        (), description="Sudden changes, in order of time."
    )
    drift: DriftSpec | None = Field(None, description="Slow change; not together with swaps.")
    options: dict[str, Any] = Field(default_factory=dict, description="Settings of the kind, by name.")

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, value: Any) -> Any:
        """Take every key that is not ours as a setting of the kind."""
        if not isinstance(value, dict):
            return value
        own = {key: item for key, item in value.items() if key in EXPERT_LOAD_KEYS}
        return {**own, "options": {key: item for key, item in value.items() if key not in own}}

    @model_validator(mode="after")
    def _one_kind_of_change(self) -> ExpertLoadSpec:
        if self.swaps and self.drift is not None:
            raise ValueError("expert_load: give swaps or drift, not both")
        times = [swap.at_s for swap in self.swaps]
        if times != sorted(times):
            raise ValueError(f"expert_load: swaps must be in order of time, found {times}")
        return self

    def as_mapping(self) -> dict[str, Any]:
        """Return what was written, as one mapping."""
        return {**self.model_dump(mode="json", exclude={"options"}, exclude_none=True), **self.options}


class PlacementSpec(Part):
    """Where experts lie, and when they move."""

    kind: Literal["contiguous", "random", "eplb", "topology"] = Field(
        "contiguous",
        description="In order, shuffled, balanced by EPLB, or (topology) with copies on different nodes, of "
        "which tokens take the nearest.",
    )
    redundant_experts: Annotated[int, Field(ge=0, le=4096)] = Field(
        0, description="Copies per layer beyond the model's own experts."
    )
    start: Literal["balanced", "contiguous"] = Field(
        "balanced",
        description="balanced: placed for the load at the start, or in order until a rebalance.",
    )
    interval_steps: Annotated[int, Field(ge=1)] | None = Field(
        None,
        description="balanced: steps between rebalances (vLLM: 3000, SGLang: 1000); default: never again.",
    )
    window_steps: Annotated[int, Field(ge=1)] = Field(
        1000, description="balanced: last steps whose picks a rebalance counts (vLLM and SGLang: 1000)."
    )
    hierarchical: bool = Field(
        True, description="eplb: expert groups stay on one node where they divide over nodes (else global)."
    )
    blocking: bool = Field(
        False, description="balanced: True if steps wait until weights have moved; False: it is hidden."
    )
    skip_above: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0,
        description="balanced: leave the placement if mean / busiest rank exceeds this; 1: never leave it.",
    )
    move_gb_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        40.0, description="GB/s at which a rank fetches weights (one 400 Gb/s NIC at 80 %)."
    )
    per_batch: bool = Field(
        False, description="Spread each batch anew over the copies (LPLB), instead of evenly."
    )
    solve_us: Annotated[float, Field(ge=0, allow_inf_nan=False)] = Field(
        100.0, description="per_batch: solving and the all-reduce of counts, per layer (assumption)."
    )
    capacity_factor: Annotated[float, Field(gt=0)] | None = Field(
        None, description="Most picks of an expert over the mean; default: no limit, as engines have it."
    )
    overflow: Literal["drop", "reroute"] = Field(
        "drop", description="What happens to picks beyond the capacity."
    )

    @model_validator(mode="after")
    def _goes_together(self) -> PlacementSpec:
        if self.interval_steps is not None and self.kind not in BALANCED:
            raise ValueError(
                f"placement: interval_steps = {self.interval_steps} with kind {self.kind}, which is never "
                f"made anew; kinds that are: {', '.join(BALANCED)}"
            )
        if self.per_batch and self.kind == "topology":
            raise ValueError(
                "placement: per_batch = true with kind topology: a batch is spread over all copies, or "
                "tokens take the nearest; give one"
            )
        return self
