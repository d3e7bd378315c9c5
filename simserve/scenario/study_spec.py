"""What a scenario says about studies of itself: sweeps, the capacity of a deployment, the size of a fleet.

Only words and ranges are checked here; what the words mean is in `simserve.study`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from simserve.errors import nearest
from simserve.metrics.comparison import MEASURABLE
from simserve.scenario.part import Part

# Figures that others published about what a scenario shows, so that a report can put ours beside them.

RunNames = str | Annotated[tuple[str, ...], Field(strict=False, min_length=1)]


class PublishedSpec(Part):
    """One published figure and how ours is computed from the runs of the scenario."""

    figure: str = Field(min_length=1, description="What was published, in words.")
    value: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        description="The figure, in the measure's unit, or (with over) a ratio."
    )
    source: str = Field(min_length=1, description="Who published it, where in the source, and when.")
    measure: str = Field(
        description="A measure of compare.json, such as whole.output_tokens_per_s; or capacity: the highest "
        "rate among runs that are stable and whose p99 latencies are within the SLO."
    )
    of: RunNames | None = Field(
        None, description="The run that shows it; several: the best of them. Default: the scenario itself."
    )
    over: RunNames | None = Field(None, description="The run that the figure is relative to.")
    differs: str | None = Field(None, description="Why ours is another, if it is.")

    @field_validator("measure")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in MEASURABLE:
            raise ValueError(f"unknown measure {value!r}{nearest(value, MEASURABLE)}")
        return value

    def runs(self) -> list[str]:
        """Return the names of all runs that the figure speaks of."""
        return [*names(self.of), *names(self.over)]


def names(of: RunNames | None) -> Sequence[str]:
    """Return the names of runs, however they were written."""
    return () if of is None else (of,) if isinstance(of, str) else of


Confidence = Annotated[float, Field(gt=0.5, lt=1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=1_000_000)]


class StudySpec(Part):
    """What all studies have in common."""

    longest: Annotated[int, Field(ge=30, le=100_000_000)] = Field(
        100_000,
        description="Most requests of one run: one that is too short to tell whether the load is carried is "
        "made longer, up to these.",
    )


class Span(Part):
    """Values between two ends: whole numbers if both are written so (4, not 4.0), else fractions too."""

    low: int | Finite = Field(alias="from", description="Least value.")
    high: int | Finite = Field(alias="to", description="Greatest value.")
    log: bool = Field(False, description="Equal factors instead of equal differences.")
    steps: Annotated[int, Field(ge=2, le=10_000)] | None = Field(
        None, description="How many values a grid takes, both ends included; default: every whole number."
    )

    @model_validator(mode="after")
    def _ordered(self) -> Span:
        if self.low > self.high:
            raise ValueError(f"from {self.low:g} to {self.high:g} holds nothing; from must not exceed to")
        if self.log and self.low <= 0:
            raise ValueError(f"log needs values above 0, found from = {self.low:g}")
        return self

    @property
    def whole(self) -> bool:
        """True if both ends are written as whole numbers."""
        return isinstance(self.low, int) and isinstance(self.high, int)


Values = Annotated[list[Any], Field(min_length=1)] | Span


class ConstraintSpec(Part):
    """A condition that points must meet, and the reason that is given for those that do not."""

    keep: str = Field(min_length=1, description="Such as pools.0.tp * pools.0.replicas <= 8")
    because: str = Field(min_length=1, description="Why others are dropped.")


class SweepSpec(StudySpec):
    """Points at which a scenario is run. Keys of `over` are paths, as in --set."""

    over: dict[str, Values] | None = Field(
        None, description="Values by path: every combination is a point (or, with `random`, a choice)."
    )
    points: list[dict[str, Any]] | None = Field(
        None, min_length=1, description="Instead of `over`: the points themselves, values by path."
    )
    random: Count | None = Field(None, description="Draw so many points from `over` instead of all of them.")
    where: list[ConstraintSpec] = Field(default_factory=list, description="Conditions that points must meet.")
    replications: Annotated[int, Field(ge=1, le=1000)] = Field(
        1, description="Runs of each point, with seeds seed, seed + 1 ..., the same at every point."
    )
    confidence: Confidence = Field(0.95, description="Of the intervals, two-sided.")
    prices: dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]] = Field(
        default_factory=dict, description="Price of one GPU and hour by the GPU's name, for every pool of it."
    )

    @model_validator(mode="after")
    def _one_source(self) -> SweepSpec:
        if (self.over is None) == (self.points is None):
            raise ValueError("give exactly one of over and points")
        if self.over is not None and not self.over:
            raise ValueError("over: an empty grid has no points; name at least one path")
        if self.points is not None and self.random is not None:
            raise ValueError("random draws from over, it cannot draw from points")
        if self.points is not None and not any(self.points):
            raise ValueError("points: an empty list has no points")
        return self


class CapacitySpec(StudySpec):
    """How much load a deployment carries within its SLO."""

    of: Literal["rate", "concurrency", "users"] = Field(
        "rate",
        description="rate: requests per second, the pattern kept; concurrency: requests in flight; users: of "
        "workload.closed_loop, who think between requests.",
    )
    low: float = Field(alias="from", gt=0, allow_inf_nan=False, description="Lowest load that is tried.")
    high: float = Field(alias="to", gt=0, allow_inf_nan=False, description="Highest load that is tried.")
    precision: Annotated[float, Field(gt=0, le=0.5)] = Field(
        0.02, description="Relative width at which the search stops."
    )
    replications: Annotated[int, Field(ge=1, le=1000)] = Field(5, description="Runs at each load.")
    confidence: Confidence = Field(0.95, description="Of the interval, two-sided.")
    curve: Annotated[int, Field(ge=0, le=1000)] = Field(
        8, description="Loads at which the saturation curve is drawn, beside those of the search."
    )

    @model_validator(mode="after")
    def _ordered(self) -> CapacitySpec:
        if self.low >= self.high:
            raise ValueError(f"from {self.low:g} to {self.high:g} holds nothing; from must be below to")
        return self


class OfferSpec(Part):
    """A GPU that can be had."""

    price_per_gpu_hour: Annotated[float, Field(gt=0, allow_inf_nan=False)] = Field(
        description="Price of one GPU for one hour, in the scenario's `currency`."
    )
    at_most: Count | None = Field(None, description="GPUs of this kind that can be had; default: any number.")


class RatioSpec(Part):
    """Prefill and decode replicas that come together."""

    prefill: Annotated[int, Field(ge=1, le=64)] = Field(1, description="Prefill replicas of a unit.")
    decode: Annotated[int, Field(ge=1, le=64)] = Field(1, description="Decode replicas of a unit.")


class SizeSpec(StudySpec):
    """The deployments among which the cheapest is looked for."""

    catalogue: Annotated[dict[str, OfferSpec], Field(min_length=1)] = Field(
        description="GPUs by name (see `simserve gpus`), with prices."
    )
    replicas: Annotated[int, Field(ge=1, le=4096)] = Field(
        16, description="Most replicas (in a split: units of the ratio) that are tried."
    )
    tp: Annotated[list[int], Field(min_length=1)] = Field(
        [1, 2, 4, 8], description="Degrees of tensor parallelism to try."
    )
    pp: Annotated[list[int], Field(min_length=1)] = Field([1], description="Pipeline stages to try.")
    dp: Annotated[list[int], Field(min_length=1)] = Field(
        [1], description="Degrees of attention data parallelism to try."
    )
    ep: Annotated[list[int], Field(min_length=1)] = Field(
        [1], description="Degrees of expert parallelism to try."
    )
    weights_dtype: Annotated[list[str], Field(min_length=1)] | None = Field(
        None, description="Default: that of the scenario's first pool."
    )
    kv_dtype: Annotated[list[str], Field(min_length=1)] | None = Field(
        None, description="Default: that of the scenario's first pool."
    )
    engine: dict[str, Annotated[list[Any], Field(min_length=1)]] = Field(
        default_factory=dict, description="Engine options by name, such as max_num_batched_tokens."
    )
    layouts: Annotated[list[Literal["aggregated", "split"]], Field(min_length=1)] = Field(
        ["aggregated"], description="Replicas that do everything, or prefill and decode apart."
    )
    ratios: list[RatioSpec] = Field(
        default_factory=lambda: [RatioSpec.model_validate({})],
        min_length=1,
        description="Of a split: prefill and decode replicas of one unit.",
    )
    where: list[ConstraintSpec] = Field(default_factory=list, description="Conditions to be met.")
    replications: Annotated[int, Field(ge=1, le=1000)] = Field(1, description="Runs of each deployment.")
    confidence: Confidence = Field(0.95, description="Of the bound that must meet the SLO, one-sided.")
    misses: Annotated[int, Field(ge=0, le=1000)] = Field(
        10, description="Deployments that miss, to be shown."
    )


class SearchSpec(StudySpec):
    """Search of a space that is too large for a grid: optuna proposes, simserve simulates."""

    over: Annotated[dict[str, Values], Field(min_length=1)] = Field(description="Values by path.")
    minimise: list[str] = Field(default_factory=list, description="Columns of the results to make small.")
    maximise: list[str] = Field(default_factory=list, description="Columns of the results to make large.")
    trials: Count = Field(50, description="Points to try.")
    sampler: Literal["tpe", "nsga2", "random"] = Field(
        "tpe", description="Which of optuna's samplers proposes."
    )
    prices: dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]] = Field(
        default_factory=dict, description="Price of one GPU and hour by the GPU's name, for every pool of it."
    )
    where: list[ConstraintSpec] = Field(default_factory=list, description="Conditions that points must meet.")
    replications: Annotated[int, Field(ge=1, le=1000)] = Field(1, description="Runs of each trial.")

    @model_validator(mode="after")
    def _aims(self) -> SearchSpec:
        if not self.minimise and not self.maximise:
            raise ValueError("name at least one column in minimise or maximise")
        return self
